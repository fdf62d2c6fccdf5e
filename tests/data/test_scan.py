"""Every row of a source is a sample or quarantined with a reason."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capro.config import DataSettings, ScanSettings
from capro.data import readers
from capro.data.manifest import Manifest
from capro.data.scan import LABELS_AHEAD, _peek, scan_sources
from capro.data.summary import scan_problems
from capro.errors import DataError
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


def test_a_second_test_set_may_have_the_same_names_but_no_training_sample(tmp_path: Path) -> None:
    readings = []
    for number, (split, ids) in enumerate([("train", "ab"), ("test", "cd"), ("test", "cea")]):
        folder = tmp_path / str(number)
        for key in ids:
            put(folder / f"{key}.png", png(ord(key) + 50 * number))
        lines = [f"{key},{key}.png,cat" for key in ids]
        (folder / "t.csv").write_text("\n".join(["key,path,label", *lines]))
        given = DataSettings(id_column="key")
        readings += readers.find(given, source=str(folder / "t.csv"), split=split)
    summary = scan_sources(readings, tmp_path / "out", ScanSettings())
    samples = Manifest.load(tmp_path / "out" / "manifest.parquet").samples
    assert [(name.partition("#")[0], int(n)) for name, n in zip(samples["id"], samples["source"], strict=True)] == [
        ("a", 0), ("b", 0), ("c", 1), ("d", 1), ("c", 2), ("e", 2)
    ]  # fmt: skip
    assert samples["id"].is_unique
    assert summary["quarantined_by"] == {"duplicate-id": 1}


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


def table(folder: Path, rows: list[dict[str, object]]) -> Path:
    """A JSONL table beside one picture."""
    put(folder / "1.png", png(1))
    (folder / "t.jsonl").write_text(
        "\n".join(json.dumps({"path": "1.png", "label": "cat"} | row) for row in rows)
    )
    return folder / "t.jsonl"


def test_one_bad_row_stops_no_scan(tmp_path: Path) -> None:
    deep = json.loads("[" * 480 + "]" * 480)
    rows: dict[str, dict[str, object]] = {
        "missing-file": {"path": "n" * 260 + ".png"},
        "bad-name": {"label": "lone \ud800 surrogate"},
        "outside-folder": {"path": "../" * 900 + "x"},
        "too-deep": {"title": deep},
        "long-label": {"label": "[" * 100_000},
        "not-a-file": {"path": "pipe.png"},
        "no-label": {"label": ""},
    }
    source = table(
        tmp_path / "d", [{}, *rows.values(), {"path": "\ud800.png"}, {"label": "[" * 100_000 + "]" * 100_000}]
    )
    os.mkfifo(tmp_path / "d" / "pipe.png")
    manifest, summary = scan_it(source, tmp_path / "out")
    assert summary["samples"] == 1
    assert manifest.table["reason"].to_pylist() == [None, *rows, "bad-name", "long-label"]


def test_labels_nested_deeper_than_the_limit(tmp_path: Path) -> None:
    source = table(tmp_path / "d", [{"label": ["a"]}, {"label": [[["a"]]]}])
    manifest, _ = scan_it(source, tmp_path / "out", max_nesting=2)
    assert manifest.table["reason"].to_pylist() == [None, "too-deep"]


def test_a_fault_of_the_program_is_named_in_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise ZeroDivisionError("in a reader")

    source = table(tmp_path / "d", [{}, {}])
    monkeypatch.setattr("capro.data.readers.table.file_below", fails)
    with pytest.raises(DataError, match=r"2 rows, none of which can be used: unexpected \(2\)"):
        scan_it(source, tmp_path / "out")
    found = pd.read_parquet(tmp_path / "out" / "quarantine.parquet")["detail"].tolist()
    assert found[0].startswith("ZeroDivisionError: in a reader (test_scan.py:")


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_lack_of_memory_and_ctrl_c_are_no_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*_: object, **__: object) -> object:
        raise error

    source = table(tmp_path / "d", [{}])
    monkeypatch.setattr("capro.data.scan.decode", fails)
    with pytest.raises(type(error)):
        scan_it(source, tmp_path / "out")
    monkeypatch.setattr("capro.data.readers.table.file_below", fails)
    with pytest.raises(type(error)):
        scan_it(source, tmp_path / "again")


def test_an_error_that_a_decoder_was_not_known_to_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> object:
        raise LookupError("strange")

    monkeypatch.setattr("capro.data.scan.decode", fails)
    with pytest.raises(DataError, match=r"unexpected \(1\)"):
        scan_it(table(tmp_path / "d", [{}]), tmp_path / "out")


def test_texts_of_a_megabyte_are_cut_and_counted(tmp_path: Path) -> None:
    source = table(
        tmp_path / "d", [{"title": "é" * 1_000_000, "tags": ["x" * 600_000, "y" * 600_000]}, {"title": "a"}]
    )
    manifest, summary = scan_it(source, tmp_path / "out")
    assert manifest.samples["title"].str.len().tolist() == [100_000, 1]
    assert manifest.samples["tags"].str.len().tolist() == [100_000, 0]
    assert summary["notes"]["cut_texts"] == 2


def test_a_label_beyond_the_number_of_classes(tmp_path: Path) -> None:
    source = table(tmp_path / "d", [{"label": name} for name in ("a", "b", "c", "a", "d")])
    found = readers.find(DataSettings(), source=str(source))
    summary = scan_sources(found, tmp_path, ScanSettings(workers=1, max_classes=2))
    assert summary["samples"] == 3
    assert summary["quarantined_by"] == {"class-limit": 2}


def test_ids_stay_different_where_a_row_has_the_name_of_another(tmp_path: Path) -> None:
    rows = [{"key": key} for key in ("x", "x#1", "x", "\ud800", "\ud801")]
    manifest, _ = scan_it(
        table(tmp_path / "d", rows), tmp_path / "out", id_column="key"
    )  # checks that ids differ
    assert len(manifest.frame) == 5


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX systems")
def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    put(tmp_path / "d" / "cat" / "1.png", png(1))
    (tmp_path / "d" / "cat" / os.fsdecode(b"caf\xe9.png")).write_bytes(png(2))
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out")
    assert manifest.table["reason"].to_pylist() == [None, "bad-name"]


def test_one_strange_first_row_does_not_decide_the_task(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"label": ["cat", "dog"]}, {"label": []}, *({} for _ in range(5))]
    manifest, summary = scan_it(table(tmp_path / "d", rows), tmp_path / "out")
    assert manifest.task == "single"
    assert summary["quarantined_by"] == {"label-kind": 2}


def test_labels_that_come_late_do_not_fill_the_memory(tmp_path: Path) -> None:
    count, without = LABELS_AHEAD + 30, LABELS_AHEAD + 20
    labels = [None] * without + ["cat"] * (count - without)
    images = pa.array([png(key) for key in range(count)], pa.binary())
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "t.parquet", row_group_size=8)
    (reader,) = readers.find(DataSettings(), source=str(tmp_path / "t.parquet"))
    _, rows = _peek(reader.rows())
    assert [row.data is None for row in rows] == [False] * (LABELS_AHEAD + 1) + [True] * (
        count - LABELS_AHEAD - 1
    )
    manifest, summary = scan_it(tmp_path / "t.parquet", tmp_path / "out")
    assert summary["quarantined_by"] == {"no-label": without}
    assert manifest.frame["sha256"].tolist() == [hashlib.sha256(png(key)).hexdigest() for key in range(count)]
