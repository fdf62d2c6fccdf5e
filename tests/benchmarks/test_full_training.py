"""The rows of full training on tiny data: each is the run that its name says, with losses of every training."""

from __future__ import annotations

from pathlib import Path

import pytest

import full_training
from capro import config
from capro.bench import Bench
from capro.bench.grids import PAPER
from capro.pipeline.artefacts import HISTORIES
from tests import squares

pytestmark = pytest.mark.slow

SOME = (
    "Vanilla",
    "MoPro",
    "CAPro, random anchors, no references",
    "CAPro, VSGraph's smoothing, bootstrapping",
)


def test_rows_have_figures_and_losses(tmp_path: Path) -> None:
    data = squares.write_data(tmp_path / "data", noise=3)
    bench = Bench(tmp_path / "bench", squares.settings(data), (0,))
    found = {label: full_training.figures_of(bench, "full", label, 0) for label in SOME}
    for label in SOME[2:]:
        assert set(found[label].figures) >= {"top1", "anchors true", "cleaned labels true", "kept"}
    step1 = found["Vanilla"].losses["step 1"]
    assert [*found["Vanilla"].losses] == ["step 1"]
    assert [*found["MoPro"].losses] == ["one training"]
    assert all([*found[label].losses] == ["step 1", "step 2"] for label in SOME[2:])
    history = bench.run_of("full", "Vanilla", PAPER, 0).read(HISTORIES["pretrain"])
    assert (step1["loss"].first, step1["loss"].last) == (history[0]["loss"], history[-1]["loss"])
    text = full_training.loss_table({(label, 0): each.losses for label, each in found.items()})
    first, last = (f"{history[place]['cls']:.2f}" for place in (0, -1))
    assert (
        f"| Vanilla, seed 0 | step 1 | {history[0]['loss']:.2f} to {history[-1]['loss']:.2f} | {first} to {last} |"
        in text
    )
    assert text.count("step 2") == 2


def test_rows_are_those_of_the_papers_ablation() -> None:
    rows = {
        label: config.load(overrides=[*PAPER, *row.overrides]) for label, row in full_training.ROWS.items()
    }
    ways = {
        (each.match.anchors, each.match.enhancer, each.train.reference)
        for label, each in rows.items()
        if full_training.ROWS[label].baseline is None
    }
    texts = {("text", enhancer, ref) for enhancer in ("none", "knn", "reciprocal") for ref in ("none", "cb")}
    assert ways == texts | {("random", "reciprocal", "none")}


def test_anchors_fade_as_in_the_paper() -> None:
    """What an epoch leaves of a prototype: the paper's 0.999 with Google500's 960 samples a class."""
    settings = config.load(overrides=full_training.SCHEDULE)
    samples = 9_846 / 33  # of a class of queryweb32
    assert settings.train.prototype_momentum**samples == pytest.approx(0.999**960, abs=0.05)
