"""Every row of a source is a sample or quarantined with a reason."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from capro.config import DataSettings, ScanSettings
from capro.data import readers
from capro.data.scan import scan_sources
from capro.data.summary import scan_problems
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


@pytest.mark.parametrize("multi", [False, True])
def test_labels_are_joined_where_that_is_asked_for(tmp_path: Path, multi: bool) -> None:
    names = ["boat", "boat", "Boat", "BOAT"]
    for number in range(4):
        put(tmp_path / "d" / f"{number}.png", png(number))
    cells = ["boat;BOAT" if multi and not number else name for number, name in enumerate(names)]
    lines = [f"{number}.png,{cell},{'test' if number == 3 else 'train'}" for number, cell in enumerate(cells)]
    (tmp_path / "d" / "metadata.csv").write_text("\n".join(["file_name,label,split", *lines]) + "\n")
    settings = {"label_separator": ";"} if multi else {}
    _, summary = scan_it(tmp_path / "d", tmp_path / "out", **settings)
    assert len(summary["classes"]) == 3
    assert [sorted(group) for group in summary["alike_labels"]] == [["BOAT", "Boat", "boat"]]
    assert any("--join-labels" in text for text in scan_problems(summary))
    manifest, summary = scan_it(tmp_path / "d", tmp_path / "joined", join_labels=True, **settings)
    assert manifest.samples["labels"].tolist() == [("boat",)] * 4
    assert summary["joined_labels"] == {"Boat": "boat", "BOAT": "boat"}
    assert summary["alike_labels"] == []
