"""The report of the real demo, made much smaller, with hostile texts in its pages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from capro.demo import run as demo_run
from capro.demo.composition import write_demo
from capro.pipeline.progress import SILENT
from capro.pipeline.run import Run
from tests.report.made import HOSTILE, collected, make_run

FEW = [
    "views.size=24", "match.top_k=3", "match.k=3", "pretrain.epochs=2", "train.epochs=2",
    "train.correct_after=0", "train.gamma=0.2", "train.queue=64", "finetune.epochs=1", "net.embedding_dim=32",
]  # fmt: skip


def write_hostile_demo(folder: Path, *, multi_label: bool) -> None:
    """Eight training pictures a class, and a hostile title, description and tag on every third."""
    write_demo(folder, multi_label=multi_label, n_train=136, n_test=51)
    file = folder / "train" / "metadata.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for number, row in enumerate(rows[::3]):
        text = HOSTILE[number % len(HOSTILE)]
        row |= {"title": text, "description": f"{row['description']} {text}", "tags": [text]}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> demo_run.DemoRun:
    """`capro demo` from the pictures to the report, in seconds."""
    patch = pytest.MonkeyPatch()
    patch.setattr(demo_run, "write_demo", write_hostile_demo)
    patch.setattr(os, "fsync", lambda _descriptor: None)
    path = tmp_path_factory.mktemp("demo") / "run"
    done = demo_run.run_demo(path, multi_label=False, overrides=FEW, watch=SILENT)
    patch.undo()
    return done


@pytest.fixture(scope="session")
def demo_report(demo: demo_run.DemoRun) -> Path:
    return demo.report.resolve()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="session")
def data(run: Run) -> Any:
    return collected(run, title=HOSTILE[0])
