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


def test_pipes_devices_and_folders_among_the_pictures(tmp_path: Path) -> None:
    put(tmp_path / "data" / "cat" / "1.png", png(1))
    os.mkfifo(tmp_path / "data" / "cat" / "2.png")
    (tmp_path / "data" / "cat" / "3.png").symlink_to("2.png")
    os.mkfifo(tmp_path / "data" / "cat" / "without ending")
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert reasons(manifest) == {"train/cat/2.png": "not-a-file", "train/cat/3.png": "not-a-file"}
    assert summary["notes"]["other_files_ignored"] == 1


def test_a_pipe_called_metadata_is_not_read(tmp_path: Path) -> None:
    put(tmp_path / "data" / "cat" / "1.png", png(1))
    os.mkfifo(tmp_path / "data" / "metadata.csv")
    _, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert summary["samples"] == summary["rows"] == 1


def test_a_folder_that_cannot_be_listed_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "data" / "cat" / "1.png", png(1))
    put(tmp_path / "data" / "dog" / "2.png", png(2))
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    manifest, _ = scan_it(tmp_path / "data", tmp_path / "out")
    assert reasons(manifest) == {"train/dog/": "unreadable"}


def test_metadata_with_an_unclosed_quote_keeps_the_other_rows(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path / "data" / "cat" / f"{number}.png", png(number))
    rows = [f"cat/{number}.png,{quote}title {number}" for number, quote in enumerate(["", '"', "", ""])]
    (tmp_path / "data" / "metadata.csv").write_text("\n".join(["file_name,title", *rows]) + "\n")
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert manifest.samples["title"].tolist() == ["title 0", "", "title 2", "title 3"]
    assert reasons(manifest) == {"train/metadata:2": "bad-row"}
    assert summary["notes"]["metadata_rows"] == 4


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_rows_that_stray_quotes_may_hide_are_named(tmp_path: Path, kind: str) -> None:
    for number in range(8):
        put(tmp_path / "data" / "cat" / f"{number}.png", png(number))
    quotes = {2: ('"', ""), 5: ("", '"')}
    rows = []
    for number in range(8):
        before, after = quotes.get(number, ("", ""))
        rows.append(f"cat/{number}.png,cat,{before}title {number}{after}")
    file = tmp_path / "data" / "metadata.csv"
    file.write_text("\n".join(["file_name,label,title", *rows]) + "\n")
    _, summary = scan_it(file if kind == "table" else tmp_path / "data", tmp_path / "out")
    assert summary["doubtful_lines"] == ["metadata.csv, lines 4 to 7"]
    said = "1 row of several lines, each of which could be a row of the table: metadata.csv, lines 4 to 7."
    assert any(said in text for text in scan_problems(summary))
