"""``capro demo``: every stage on the embedded data, measured against what is really true."""

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
from capro.evaluate.truth import on_truth
from capro.run.directory import Run
from capro.run.progress import Watch
from capro.stages import PLAN
from capro.stages.match import anchor_sheet, purity_by_enhancer
from capro.stages.report import report

SEVERAL = [  # over the demo's preset where samples have several labels
    "train.gamma=0.9",  # as the paper's NUS-WIDE
    # L_cls is a mean over the classes, so that a logit pulls a dozen times less than with one label;
    # with 1 the encoder forgets the classes to separate single samples
    "train.lambda_ins=0.1",
]


@dataclass(frozen=True)
class DemoRun:
    """A finished demo, and what was measured on the truth that its data know."""

    run: Run
    purity: dict[str, NDArray[np.float64]]  # of the anchors of each class, by enhancer
    truth: dict[str, Any]  # evaluate.truth.on_truth
    sheet: Path  # pictures of the anchors
    report: Path


def run_demo(path: Path, *, multi_label: bool, overrides: list[str], watch: Watch) -> DemoRun:
    """Write the demo data beside the run directory, do every stage and make the report."""
    source = path.with_name(path.name + "-data")
    data = [f"data.source={source}", f"data.classes={source / 'classes.yaml'}"]
    several = SEVERAL if multi_label else []
    settings = config.load(preset_name="demo", overrides=[*data, *several, *overrides])
    run = Run.create(path, settings)
    PLAN.announce(run, watch, first=["compose"], last=["measure", "report"])
    with _shown("compose", watch):
        write_demo(source, multi_label=multi_label)
    PLAN.do(run, *(stage.name for stage in PLAN.of(settings)), watch=watch)
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
