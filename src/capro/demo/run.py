"""``capro demo``: every stage on the embedded data, measured against the ground truth."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro import config
from capro.demo.composition import write_demo
from capro.pipeline.progress import Watch
from capro.pipeline.run import Run
from capro.results.truth import on_truth
from capro.stages import PLAN
from capro.stages.match import anchor_sheet, purity_by_enhancer
from capro.stages.report import report

PRESETS = {False: "small", True: "small-multi"}  # by whether it is multi-label
SMALL_CLASSES = "match.top_k=30"  # they have 100 to 180 samples


@dataclass(frozen=True)
class DemoRun:
    """A finished demo, and what was measured on its ground truth."""

    run: Run
    purity: dict[str, NDArray[np.float64]]  # of the anchors of each class, by enhancer
    truth: dict[str, Any]  # evaluate.truth.on_truth
    sheet: Path  # pictures of the anchors
    report: Path


def run_demo(path: Path, *, multi_label: bool, overrides: list[str], watch: Watch) -> DemoRun:
    """Write the demo data beside the run directory, do every stage and make the report."""
    source = path.with_name(path.name + "-data")
    data = [f"data.source={source}", f"data.classes={source / 'classes.yaml'}"]
    settings = config.load(preset_name=PRESETS[multi_label], overrides=[*data, SMALL_CLASSES, *overrides])
    run = Run.create(path, settings)
    watch.plan(["compose", *PLAN.all_names(run), "measure", "report"])
    with _shown("compose", watch):
        write_demo(source, multi_label=multi_label)
    PLAN.do(run, *PLAN.all_names(run), watch=watch)
    with _shown("measure", watch):
        truth = source / "train_truth.csv"
        purity, measured = purity_by_enhancer(run, truth), on_truth(run, truth)
        sheet = anchor_sheet(run)
    with _shown("report", watch):
        made = report(run, title="capro demo", watch=watch)
    return DemoRun(run, purity, measured, sheet, made)


@contextmanager
def _shown(name: str, watch: Watch) -> Iterator[None]:
    """A part of the demo that is no stage of the plan."""
    watch.begin(name)
    begin = time.monotonic()
    yield
    watch.end(name, seconds=time.monotonic() - begin)
