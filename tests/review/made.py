"""A small run for the review: real pictures and manifest, hostile texts, made-up verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capro import config
from capro.pipeline.artefacts import ANCHORS, VISUAL, write_array, write_table
from capro.pipeline.run import Run
from capro.stages import PLAN
from capro.train import setup
from tests.fakes import fake_stage, fake_the_rest
from tests.made_up import CLASSES, make_verdict_rows, write_source, write_verdicts


def make_run(folder: Path, *, multi: bool = False, per_class: int = 8) -> Run:
    """A run that has been cleaned, as far as the review reads it."""
    source = write_source(folder / "data", multi=multi, per_class=per_class, test=1)
    classes = folder / "classes.yaml"
    classes.write_text("".join(f"- {name}\n" for name in CLASSES), "utf-8")
    given = [f"data.source={source}", f"data.classes={classes}", "scan.workers=1"]
    run = Run.create(folder / "run", config.load(overrides=given))
    PLAN.do(run, "scan", "classes")
    training = setup.training_set(run)
    rows = make_verdict_rows(training)
    n = len(training.positions)
    rng = np.random.default_rng(0)

    def embed(here: Path) -> None:
        write_array(here / VISUAL.file, rng.normal(size=(n, 6)).astype(np.float32))

    def match(here: Path) -> None:
        labels = training.labels.numpy()
        label = labels if labels.ndim == 1 else labels.argmax(axis=1)
        frame = pd.DataFrame({"row": np.arange(6), "class_index": label[:6], "rank": np.arange(6)})
        write_table(here / ANCHORS.file, frame)

    def clean(here: Path) -> None:
        write_verdicts(here, rows)

    for name, write in (("embed", embed), ("match", match), ("clean", clean)):
        fake_stage(run, name, write)
    fake_the_rest(run)
    return run


def clean_anew(run: Run, seed: int = 1) -> None:
    """Other verdicts, as after an Apply."""
    rows = make_verdict_rows(setup.training_set(run), seed)
    fake_stage(run, "clean", lambda here: write_verdicts(here, rows), again=seed)


def entered(client: Any, link: str) -> str:
    """Open a link with a test client; returns the key that writes need."""
    path = link.split("/open")[1]
    assert client.get(f"/open{path}").status_code == 200
    page = client.get("/").text
    return str(page.split('name="capro-key" content="')[1].split('"')[0])
