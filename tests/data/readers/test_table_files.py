"""Table files as Excel and others write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.data.readers.table_files import encoding_of, header, records
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
