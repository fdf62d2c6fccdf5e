"""Hostile and mutated settings (YAML), overrides, class lists and review tables."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import yaml

from capro import config
from capro.errors import CaproError
from capro.models.classes import load_classes
from soak.attack import Attack, Broken, Outcome, Strike
from soak.mutations import encodable, flipped, text, value

EACH = 10
BOMB = "a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c]\ne: [*d,*d,*d,*d]\n"
CLASSES = "- cat\n- {name: dog, definition: an animal, sense: n02084071}\n- name: mouse\n  ambiguous: true\n"


def _ready(_: Path) -> Strike:
    whole = yaml.safe_dump(config.load(preset_name="small").model_dump(), allow_unicode=True)

    def strike(_number: int, rng: random.Random, empty: Path) -> Outcome:
        for _ in range(EACH):
            kind = rng.choice(sorted(KINDS))
            (empty / "kind").write_text(kind)
            KINDS[kind](empty, rng, whole)
        return Outcome(inputs=EACH)

    return strike


def _settings(folder: Path, rng: random.Random, whole: str) -> None:
    file = folder / "settings.yaml"
    kind = rng.random()
    if kind < 0.4:
        file.write_bytes(flipped(whole.encode(), rng))
    elif kind < 0.7:
        values = {
            rng.choice((*config.sections(), "seed", "preset", "method", "x")): value(rng) for _ in range(3)
        }
        file.write_text(json.dumps(values), "utf-8", "replace")
    elif kind < 0.8:
        file.write_text(
            BOMB + f"preset: {rng.choice(('small', '*e', '[small]', '5', '2024-99-99'))}\n", "utf-8"
        )
    else:
        file.write_text(encodable(text(rng)) * rng.choice((1, 50)), "utf-8")
    _allowed(lambda: config.load(file))


def _override(folder: Path, rng: random.Random, _: str) -> None:
    name = rng.choice(
        [f"{part}.{key}" for part, kind in config.sections().items() for key in kind.model_fields]
    )
    word = f"{name if rng.random() < 0.8 else text(rng)}{rng.choice(('=', '', '=='))}{text(rng)}"
    (folder / "override").write_text(word, "utf-8", "replace")
    _allowed(lambda: config.load(overrides=[word]))


def _classes(folder: Path, rng: random.Random, _: str) -> None:
    file = folder / "classes.yaml"
    kind = rng.random()
    if kind < 0.5:
        file.write_bytes(flipped(CLASSES.encode(), rng))
    elif kind < 0.6:
        file.write_text(BOMB, "utf-8")
    else:
        file.write_text(json.dumps([value(rng) for _ in range(3)]), "utf-8", "replace")
    _allowed(lambda: load_classes(file))


def _allowed(read: Callable[[], object]) -> None:
    try:
        read()
    except CaproError as error:
        if len(str(error)) > 20_000:
            raise Broken(f"a message of {len(str(error))} characters") from None


KINDS: dict[str, Callable[[Path, random.Random, str], None]] = {
    "settings": _settings,
    "override": _override,
    "classes": _classes,
}

ATTACK = Attack("configs", goal=20_000, share=1, ready=_ready, batch=100)
