"""Anchor purity on tiny data, by the product's own matching."""

from __future__ import annotations

from pathlib import Path

import pytest

import anchors
import variants
from capro.bench import Bench
from tests import squares


def test_purity_of_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "DRAWS", 2)
    data = squares.write_data(tmp_path / "data")
    bench = Bench(tmp_path / "bench", squares.settings(data), (0,))
    found = anchors.purities(bench, variants.truth_of(bench), 4)
    assert list(found) == ["random", "none", "knn", "reciprocal", "none+c", "knn+c", "reciprocal+c"]
    assert all(pure.shape == (3,) for pure in found.values())
    assert found["none"].tolist() == [1.0, 1.0, 1.0]  # the texts are true to the pictures
    assert len([*(bench.folder / "store" / "embed").iterdir()]) == 1
