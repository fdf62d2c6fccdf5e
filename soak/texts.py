"""Hostile texts and labels through every format of export and back: what `scan` reads again is what it read first."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from capro import config
from capro.data.manifest import Manifest, manifest_of
from capro.data.readers import WRITERS, load_writer
from capro.errors import CaproError
from capro.export.dataset import cleaned_table, export_data
from capro.pipeline.run import Run
from capro.results.store import VerdictStore
from capro.stages import PLAN
from capro.train import setup
from soak import child
from soak.attack import Attack, Broken, Outcome, Strike
from soak.mutations import encodable, text
from tests.data.corpus import png
from tests.fakes import fake_stage, fake_the_rest
from tests.made_up import make_verdict_rows, write_verdicts

SAMPLES = 12
KEPT = ("sha256", "title", "description", "tags", "split")


def _ready(_: Path) -> Strike:
    child.without_weights()
    os.fsync = lambda _descriptor: None  # no power is cut here

    def strike(_number: int, rng: random.Random, empty: Path) -> Outcome:
        try:
            run = _judged(empty, rng)
        except CaproError:  # for example labels that are no labels: nothing is left to export
            return Outcome(inputs=SAMPLES)
        problems = [said for to in sorted(WRITERS) if (said := _there_and_back(run, empty / to, to))]
        if problems:
            raise Broken("; ".join(problems))
        return Outcome(inputs=SAMPLES * len(WRITERS))

    return strike


def _judged(folder: Path, rng: random.Random) -> Run:
    """A run on hostile texts with verdicts that somebody made up."""
    (folder / "data").mkdir()
    labels = [encodable(text(rng))[:200] or "cat" for _ in range(3)]
    rows = []
    for number in range(SAMPLES):
        (folder / "data" / f"{number}.png").write_bytes(png(number))
        row: dict[str, Any] = {"image": f"{number}.png", "label": labels[number % 3]}
        row |= {name: text(rng) for name in ("title", "description", "tags")}
        rows.append(json.dumps(row) + "\n")
    if rng.random() < 0.05:  # a title of a megabyte
        rows[0] = json.dumps(json.loads(rows[0]) | {"title": "a, \r<b>\n" * 125_000}) + "\n"
    (folder / "data" / "table.jsonl").write_text("".join(rows), "utf-8")
    overrides = [
        f"data.source={folder / 'data' / 'table.jsonl'}",
        "net.backbone=small",
        "views.size=16",
        "scan.workers=1",
    ]
    run = Run.create(folder / "run", config.load(overrides=overrides))
    PLAN.do(run, "scan")
    PLAN.do(run, "classes")
    rows = make_verdict_rows(setup.training_set(run))
    fake_stage(run, "clean", lambda here: write_verdicts(here, rows))
    fake_the_rest(run)
    return run


def _there_and_back(run: Run, out: Path, to: str) -> str:
    """What is other when an export is read again; empty where nothing is."""
    try:
        export_data(run, out, to=to, images=None if to in ("webdataset", "hf") else "copy")
        again = _scanned(out / load_writer(to).entry, out.with_name(f"{to}-again"))
    except CaproError as error:
        return "" if "every training sample was dropped" in str(error) else f"{to}: {error}"
    bad = again.frame[again.frame["status"] != "ok"]
    if len(bad):
        return f"{to}: quarantined when read back: {bad[['id', 'reason']].values.tolist()[:3]!r}"
    before, found = manifest_of(run), again.samples.set_index("id")
    table = cleaned_table(VerdictStore(run))
    kept = table[table["decision"] != "drop"].set_index("capro_id")
    if sorted(found.index) != sorted(kept.index):
        return f"{to}: lost: {sorted(set(kept.index) - set(found.index))[:3]!r}"
    old = before.samples.set_index("id").loc[found.index]
    for column in KEPT:
        for identity, first, second in zip(found.index, old[column], found[column], strict=True):
            if first != second:
                return f"{to}: {column} of {identity}: {first[:100]!r} became {second[:100]!r}"
    wanted, labels = kept.loc[found.index, "label"].tolist(), [each[0] for each in found["labels"]]
    return "" if labels == wanted else f"{to}: labels {wanted!r:.200} became {labels!r:.200}"


def _scanned(source: Path, folder: Path) -> Manifest:
    run = Run.create(folder, config.load(overrides=[f"data.source={source}", "scan.workers=1"]))
    PLAN.do(run, "scan")
    return manifest_of(run)


ATTACK = Attack("texts", goal=20_000, share=2, ready=_ready, batch=5)
