"""Both readings on tiny data: each is another run, and only what it decides is done again."""

from __future__ import annotations

from pathlib import Path

import pytest

import readings
import variants
from capro.bench import Bench
from capro.pipeline.artefacts import DISTANCES, HISTORIES
from tests import squares

pytestmark = pytest.mark.slow


def test_readings_decide_what_they_are_about(tmp_path: Path) -> None:
    data = squares.write_data(tmp_path / "data", noise=3)
    bench = Bench(tmp_path / "bench", squares.settings(data, "method=paper"), (0,))
    found = readings.measured(bench, variants.truth_of(bench))
    assert [row.label for row in found] == [*readings.READINGS]
    assert set(found[0].figures[0]) >= {"top1", "anchors true", "cleaned labels true"}
    store = bench.folder / "store"
    done = {
        name: len([*(store / name).iterdir()]) for name in ("pretrain", "embed", "graph", "match", "train")
    }
    assert done == {"pretrain": 1, "embed": 1, "graph": 2, "match": 2, "train": 4}
    runs = [
        bench.run_of("readings", label, (*readings.PUBLISHED, *values), 0)
        for label, values in readings.READINGS.items()
    ]
    without, _, within, _ = (run.read(DISTANCES)["distance"].to_numpy() for run in runs)
    assert (without != within).any()
    assert ["prj" in run.read(HISTORIES["train"])[-1] for run in runs] == [True, False, True, False]
