"""Image folders with and without metadata."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from tests.data.corpus import BAD_IMAGES, png
from tests.data.scanning import put, reasons, scan_it


def test_folder_gives_class_by_folder_in_path_order(tmp_path: Path) -> None:
    for seed, name in enumerate(["dog/b.png", "cat/2.jpg", "cat/1.png"]):
        put(tmp_path / "data" / name, png(seed))
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert manifest.samples["id"].tolist() == ["train/cat/1.png", "train/cat/2.jpg", "train/dog/b.png"]
    assert manifest.samples["labels"].tolist() == [("cat",), ("cat",), ("dog",)]
    assert (summary["task"], summary["rows"]) == ("single", 3)


def test_every_bad_image_is_quarantined_with_its_reason(tmp_path: Path) -> None:
    put(tmp_path / "data" / "cat" / "good.png", png())
    for number, (data, _) in enumerate(BAD_IMAGES.values()):
        put(tmp_path / "data" / "cat" / f"bad{number:02d}.jpg", data)
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out")
    expected = {
        f"train/cat/bad{number:02d}.jpg": reason for number, (_, reason) in enumerate(BAD_IMAGES.values())
    }
    assert reasons(manifest) == expected
    assert summary["samples"] == 1


def test_metadata_wins_over_folder_and_unmatched_are_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "a" / "1.png", png(1))
    put(data / "a" / "2.png", png(2))
    text = "file_name,title,label\na/1.png,a red car,Car\na/9.png,gone,Car\n"
    (data / "metadata.csv").write_text(text)
    manifest, summary = scan_it(data, tmp_path / "out")
    assert manifest.samples["labels"].tolist() == [("Car",), ("a",)]
    assert manifest.samples["title"].tolist() == ["a red car", ""]
    assert reasons(manifest) == {"train/a/9.png": "missing-file"}
    notes = summary["notes"]
    assert (notes["metadata_matched"], notes["metadata_unmatched"]) == (1, 1)
    assert notes["files_without_metadata"] == 1
    assert summary["without_text"] == {"train": 1}


HOSTILE_PATHS = {
    "../secret.png": "outside-folder",
    "a/../../secret.png": "outside-folder",
    "/etc/passwd": "outside-folder",
    "C:\\images\\1.png": "outside-folder",
    "C:1.png": "outside-folder",
    "\\\\host\\share\\1.png": "outside-folder",
    "": "outside-folder",
    "link.png": "outside-folder",
    "a/missing.png": "missing-file",
}


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"
    put(data / "a" / "1.png", png())
    put(tmp_path / "secret.png", png(7))
    os.symlink(tmp_path / "secret.png", data / "link.png")
    rows = pd.DataFrame({"file_name": ["a/1.png", *HOSTILE_PATHS], "label": "a"})
    name = "metadata.csv" if kind == "folder" else "table.csv"
    rows.to_csv(data / name, index=False)
    source = data if kind == "folder" else data / name
    manifest, summary = scan_it(source, tmp_path / "out")
    assert manifest.samples["path"].tolist() == ["a/1.png"]
    expected = dict(pd.Series(list(HOSTILE_PATHS.values())).value_counts())
    if kind == "table":  # an empty cell is no path at all
        expected = {**expected, "outside-folder": expected["outside-folder"] - 1, "no-image": 1}
    else:  # the linked file itself was found by walking the folder
        expected = {**expected, "outside-folder": expected["outside-folder"] + 1}
    assert summary["quarantined_by"] == expected


def test_non_utf8_metadata_is_read_and_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "1.png", png())
    put(data / "metadata.csv", b"file_name,title,label\n1.png,caf\xe9 \xff,cat\n")
    manifest, summary = scan_it(data, tmp_path / "out")
    assert "caf\ufffd" in manifest.samples["title"][0]
    assert summary["notes"]["metadata_replaced"] == 1
