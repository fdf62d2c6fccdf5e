"""Image folders with and without metadata."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pandas as pd
import pytest

from capro.data.summary import scan_problems
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


def test_damaged_utf8_is_read_and_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "1.png", png())
    put(data / "metadata.csv", "file_name,title,label\n1.png,café über ".encode() + b"\xff,cat\n")
    manifest, summary = scan_it(data, tmp_path / "out")
    assert manifest.samples["title"][0] == "café über \ufffd"
    assert summary["notes"]["metadata_replaced"] == 1
    assert summary["guessed_encodings"] == {}


def test_accents_match_in_either_form_of_unicode(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / unicodedata.normalize("NFD", "Vögel") / "1.png", png())  # as macOS unpacks it
    put(data / "metadata.csv", "file_name,title,label\nVögel/1.png,ein Vogel,bird\n".encode())
    manifest, summary = scan_it(data, tmp_path / "out")
    assert manifest.samples["title"].tolist() == ["ein Vogel"]
    assert summary["notes"]["metadata_unmatched"] == 0


def test_another_table_in_the_folder_is_named(tmp_path: Path) -> None:
    put(tmp_path / "data" / "cat" / "1.png", png())
    put(tmp_path / "data" / "pages.csv", b"file_name,title\ncat/1.png,a cat\n")
    _, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert summary["ignored_tables"] == ["pages.csv"]
    assert any("rename it to metadata.csv" in text for text in scan_problems(summary))
    (tmp_path / "data" / "pages.csv").rename(tmp_path / "data" / "Metadata.CSV")  # in any case
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out2")
    assert manifest.samples["title"].tolist() == ["a cat"]
    assert summary["ignored_tables"] == []


def test_files_without_a_row_are_warned_of(tmp_path: Path) -> None:
    put(tmp_path / "data" / "Boat" / "1.png", png(1))
    put(tmp_path / "data" / "Boat" / "2.png", png(2))
    put(tmp_path / "data" / "metadata.csv", b"file_name,label,title\nBoat/1.png,boat,a boat\n")
    _, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert summary["classes"] == {"Boat": {"train": 1}, "boat": {"train": 1}}
    text = " ".join(scan_problems(summary))
    assert "1 of 2 files have no row in the metadata" in text
    assert "'Boat' (1) and 'boat' (1). --join-labels makes one class" in text
