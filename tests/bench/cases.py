"""Made-up cases that several test files need."""

from __future__ import annotations

from pathlib import Path

from capro.bench.summary import Measured, TableResult
from capro.pipeline.run import Run
from capro.stages import PLAN
from tests import squares


def prepare(base: Path, *overrides: str, multi: bool = False) -> Run:
    """A tiny run after step 1; all training samples are verified."""
    data = squares.write_data(base / "data", multi=multi)
    # three steps an epoch: believed after one epoch, MoPro's networks that know nothing would decide
    mopro = "baselines.mopro_start=0.5"
    own = (f"baselines.verified={data / 'train_truth.csv'}", "pretrain.epochs=12", mopro)
    run = Run.create(base / "run", squares.settings(data, *own, *overrides, multi=multi))
    PLAN.do(run, "scan", "pretrain")
    return run


def result(*, axis: str = "") -> TableResult:
    rows = [
        Measured("0.1", {0: {"top1": 0.5, "top5": 0.9}, 1: {"top1": 0.6, "top5": 0.8}}, x=0.1),
        Measured(
            "0.5 <b>|", {0: {"top1": 0.7, "top5": 0.9}, 1: {"top1": 0.7, "top5": 0.9}},
            paper={"Google500": (76.0, 91.3), "ImageNet500": (72.0, 89.2)}, x=0.5,
        ),
        Measured("1", x=1.0, problem="no encoder 'x'"),
    ]  # fmt: skip
    return TableResult("t", "A & B", rows, ("top1", "top5"), "0.1", (0, 1), axis=axis, note="A note.")
