"""Every row of a source is a sample or quarantined with a reason."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from capro.config import DataSettings, ScanSettings
from capro.data import readers
from capro.data.scan import scan_sources
from tests.data.corpus import png
from tests.data.scanning import put, scan_it


def test_ids_splits_and_duplicates(tmp_path: Path) -> None:
    for seed in (1, 2):
        put(tmp_path / f"{seed}.png", png(seed))
    frame = pd.DataFrame(
        [("x", "1.png", "cat", "train"), ("y", "1.png", "dog", "train"), ("x", "2.png", "cat", "train"),
         ("z", "1.png", "cat", "test"), ("w", "2.png", "cat", "holdout")],
        columns=["key", "path", "label", "part"],
    )  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    manifest, summary = scan_it(tmp_path / "t.csv", tmp_path / "out", id_column="key", split_column="part")
    assert manifest.samples["id"].tolist() == ["x", "y", "z"]
    assert summary["quarantined_by"] == {"duplicate-id": 1, "bad-split": 1}
    found = summary["duplicates"]
    assert (found["copies_in_train"], found["groups_with_different_labels"]) == (1, 1)
    assert found["held_out_also_in_train"] == 1
    assert found["examples"] == [["x", "z"]]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows", "classes"),
    [("queryweb32/train", 9846, 33), ("cococap64", 10_000, 17), ("shopweb64/train", 7401, 24)],
)
def test_real_data_sets(shared: Path, tmp_path: Path, name: str, rows: int, classes: int) -> None:
    summary = scan_sources(
        readers.find(DataSettings(), source=str(shared / name)), tmp_path, ScanSettings(workers=2)
    )
    assert summary["rows"] == summary["samples"] == rows
    assert summary["quarantined"] == 0
    assert len(summary["classes"]) == classes
    assert summary["splits"]["train"] == {10_000: 8000}.get(rows, rows)
