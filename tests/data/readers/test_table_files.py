"""Table files as Excel and others write them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capro.config import DataSettings
from capro.data.readers import find
from capro.data.readers.table_files import encoding_of, header, records
from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import put, scan_it

TEXT = "Datei;Größe\r\nVögel/1.png;schön\r\nVögel/2.png;süß\r\n"
ROWS = [{"Datei": "Vögel/1.png", "Größe": "schön"}, {"Datei": "Vögel/2.png", "Größe": "süß"}]


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("cp1252", "cp1252"),
        ("utf-8", "utf-8-sig"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
    ],
)
@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_excel_files(tmp_path: Path, encoding: str, found: str, separator: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TEXT.replace(";", separator).encode(encoding))
    assert encoding_of(path) == found
    assert header(path) == ["Datei", "Größe"]
    assert [record.cells for record in records(path)] == ROWS


def test_the_line_with_the_separator_that_excel_writes(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("sep=;\r\n" + TEXT, "utf-8")
    assert [record.cells for record in records(path)] == ROWS


def test_utf8_with_some_broken_bytes_stays_utf8(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TEXT.encode() + b"x;\xe9\n")
    assert encoding_of(path) == "utf-8-sig"
    assert [record.replaced for record in records(path)] == [False, False, True]
    long = tmp_path / "long.csv"
    long.write_bytes(b"a;b\n" + b"x" * (1 << 20) + "ü;ü\n".encode() * 3)  # a character across two blocks
    assert encoding_of(long) == "utf-8-sig"


def test_a_changed_file_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TEXT.encode("cp1252"))
    assert encoding_of(path) == "cp1252"
    path.write_bytes(TEXT.encode("utf-8"))
    assert encoding_of(path) == "utf-8-sig"


def test_a_named_encoding_wins(tmp_path: Path) -> None:
    put(tmp_path / "d" / "Vögel" / "1.png", png(1))
    put(tmp_path / "d" / "metadata.csv", "file_name,title\nVögel/1.png,schön\n".encode("mac_roman"))
    _, summary = scan_it(tmp_path / "d", tmp_path / "guessed")
    assert summary["notes"]["metadata_matched"] == 0
    assert summary["guessed_encodings"] == {"metadata.csv": "cp1252"}
    manifest, summary = scan_it(tmp_path / "d", tmp_path / "named", encoding="mac_roman")
    assert manifest.samples["title"].tolist() == ["schön"]
    assert summary["guessed_encodings"] == {}


def test_a_mark_at_the_start_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TEXT.encode("utf-8-sig"))
    assert header(path, "UTF8") == header(path) == ["Datei", "Größe"]


def test_columns_of_jsonl_are_those_of_all_records(tmp_path: Path) -> None:
    put(tmp_path / "1.png", png(1))
    lines = [
        '{"path": "1.png", "label": "cat"}',
        "{broken",
        '{"path": "1.png", "label": "cat", "title": "Tom"}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert header(tmp_path / "t.jsonl") == ["path", "label", "title"]
    manifest, summary = scan_it(tmp_path / "t.jsonl", tmp_path / "out")
    assert manifest.samples["title"].tolist() == ["", "Tom"]
    assert summary["columns"]["read"]["text"] == "title"


def test_a_field_for_each_record_takes_bounded_memory(tmp_path: Path) -> None:
    lines = [f'{{"field {number}": 1}}' for number in range(12_000)]
    (tmp_path / "t.jsonl").write_text("\n".join([*lines, '{"Alt Text": "x"}']))
    found = header(tmp_path / "t.jsonl")
    assert len(found) == 10_001
    assert found[-1] == "Alt Text"


def test_a_line_without_end_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("table_files", "text_files"):
        monkeypatch.setattr(f"capro.data.readers.{module}.MAX_LINE", 100)
    (tmp_path / "t.jsonl").write_text('{"a": "' + "x" * 1000 + '"}\n{"a": "y"}\n')
    (tmp_path / "t.csv").write_text("a,b\n" + "x" * 1000 + ",1\ny,2\n")
    for path in (tmp_path / "t.jsonl", tmp_path / "t.csv"):
        first, second = records(path)
        assert "more than 100 characters" in first.problem
        assert second.cells["a"] == "y"


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_pipe_is_no_table(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for read in (header, lambda path: [*records(path)], encoding_of)[: 2 if name == "t.parquet" else 3]:
        with pytest.raises(DataError, match="is a named pipe, not a file"):
            read(tmp_path / name)
    with pytest.raises(DataError, match="neither a file nor a folder"):
        find(DataSettings(), source=str(tmp_path / name))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_two_columns_of_one_name_that_is_read(tmp_path: Path, name: str) -> None:
    put(tmp_path / "1.png", png(1))
    if name == "t.csv":
        (tmp_path / name).write_text("path,label,title,x,x,label\n1.png,cat,Tom,1,2,dog\n")
    else:
        arrays = [pa.array([cell]) for cell in ("1.png", "cat", "Tom", "1", "2", "dog")]
        pq.write_table(
            pa.Table.from_arrays(arrays, ["path", "label", "title", "x", "x", "label"]), tmp_path / name
        )
    with pytest.raises(DataError, match="2 columns are called 'label', which is read as label") as caught:
        scan_it(tmp_path / name, tmp_path / "out")
    assert "--label-column" in caught.value.hint
    manifest, _ = scan_it(tmp_path / name, tmp_path / "title", label_column="title")
    assert manifest.samples["labels"].tolist() == [("Tom",)]
