"""Hostile and mutated model folders: `capro predict` opens them or says why not, and asks no network."""

from __future__ import annotations

import copy
import json
import random
import socket
from pathlib import Path
from typing import Any

from safetensors.torch import save

from capro.errors import CaproError
from capro.export.predictor import Item, Predictor
from capro.models.backbones import load_backbone
from capro.models.deployed import Deployed, describe
from soak.attack import Attack, Broken, Outcome, Strike
from soak.mutations import flipped, value
from tests.data.corpus import png


def _ready(folder: Path) -> Strike:
    nets = [Deployed(load_backbone("small", image_size=16), 3), _vit(folder)]
    folders = [(_config(net), save(net.state_dict())) for net in nets]
    socket.socket.connect = _refuse  # type: ignore[method-assign, assignment]

    def strike(_number: int, rng: random.Random, empty: Path) -> Outcome:
        config, weights = rng.choice(folders)
        kind = rng.random()
        values = json.dumps(_changed(copy.deepcopy(config), rng) if kind < 0.6 else config).encode()
        (empty / "config.json").write_bytes(flipped(values, rng) if 0.6 <= kind < 0.8 else values)
        (empty / "model.safetensors").write_bytes(flipped(weights, rng) if kind >= 0.8 else weights)
        try:
            rows = [*Predictor.load(empty).rows([Item("x", png(1))], open_set=False)]
        except CaproError as error:
            if not error.hint or str(empty) not in str(error):
                raise Broken(f"no hint or no folder: {error}") from None
        else:
            if len(rows) != 1:
                raise Broken(f"{len(rows)} rows for one image")
        return Outcome(inputs=1)

    return strike


def _refuse(*_: Any) -> None:
    raise Broken("a model folder made capro ask the network")


def _vit(folder: Path) -> Deployed:
    from transformers import ViTConfig, ViTModel

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(**shape, image_size=32, patch_size=16)).save_pretrained(folder / "vit")
    return Deployed(load_backbone(str(folder / "vit")), 3)


def _config(net: Deployed) -> dict[str, Any]:
    found = {
        "capro_format": 1,
        "num_labels": 3,
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "problem_type": "single_label_classification",
        "backbone": describe(net.backbone),
        "preprocessing": {
            "size": net.backbone.size,
            "limits": {"max_pixels": 50_000_000, "max_aspect": 100.0},
        },
        "open_set": {"threshold": 0.5},
    }
    copied: dict[str, Any] = json.loads(json.dumps(found))
    return copied


def _changed(values: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A value somewhere in the configuration replaced, added or left out."""
    for _ in range(rng.choice((1, 1, 2))):
        at = values
        while (
            inner := [key for key, each in at.items() if isinstance(each, dict) and each]
        ) and rng.random() < 0.7:
            at = at[rng.choice(inner)]
        key = rng.choice([*at, "auto_map", "_name_or_path", "trust_remote_code"])
        if rng.random() < 0.2:
            at.pop(key, None)
        else:
            at[key] = value(rng)
    return values


ATTACK = Attack("model-folders", goal=5_000, share=2, ready=_ready, batch=200)
