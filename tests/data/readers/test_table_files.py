"""Table files as Excel and others write them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capro.config import DataSettings
from capro.data.readers import find
from capro.data.readers.base import Record, write_csv
from capro.data.readers.table_files import (
    class_labels,
    csv_records,
    encoding_of,
    header,
    parquet_records,
    records,
    whole_records,
)
from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import put, reasons, scan_it, write_parquet

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


HEAD = "file_name,label,title\n"


def read(path: Path, text: str) -> list[Record]:
    path.write_bytes(text.encode())
    return [*csv_records(path, "auto")]


@pytest.mark.parametrize(
    "later", ["", '9999.png,cat,"a, b"\n', '9999.png,cat,"tom"\n', 'x.png,dog,a "b" c\n']
)
def test_one_unclosed_quote_costs_one_row_not_all_that_follow(tmp_path: Path, later: str) -> None:
    rows = [f"{number}.png,cat,title {number}\n" for number in range(1000)]
    rows[5] = '5.png,cat,"title 5\n'
    found = read(tmp_path / "t.csv", HEAD + "".join(rows) + later)
    assert len(found) == 1000 + bool(later)
    bad = [record for record in found if record.problem]
    assert [record.problem for record in bad] == ["line 7: a quote that is not closed"]
    assert found[6].cells == {"file_name": "6.png", "label": "cat", "title": "title 6"}


def test_every_row_with_an_unclosed_quote_has_its_line(tmp_path: Path) -> None:
    rows = ['0.png,cat,"x\n', "1.png,cat,y\n", '2.png,cat,"z\n', "3.png,cat,w\n", "4.png,cat,v\n"]
    found = read(tmp_path / "t.csv", HEAD + "".join(rows))
    assert [record.number for record in found] == [1, 2, 3, 4, 5]
    assert [bool(record.problem) for record in found] == [True, False, True, False, False]


def test_rows_in_a_cell_between_two_stray_quotes_are_found(tmp_path: Path) -> None:
    rows = ['a.png,cat,"x\n', *(f"{number}.png,cat,y\n" for number in range(30)), 'b.png,cat,z"\n']
    found = read(tmp_path / "t.csv", HEAD + "".join(rows))
    assert len(found) == 32
    assert sum(not record.problem for record in found) >= 30


def test_cells_of_many_lines_stay_whole(tmp_path: Path) -> None:
    poem = "\n".join(f"line {number}, with a comma" for number in range(2000))
    found = read(tmp_path / "t.csv", f'{HEAD}1.png,cat,"{poem}"\n2.png,cat,"a\n\nb"\n3.png,cat,"a\nb" c\n')
    assert [record.problem for record in found] == ["", "", ""]
    assert [record.cells["title"] for record in found] == [poem, "a\n\nb", "a\nb c"]


@pytest.mark.parametrize("apart", [1, 2, 10, 18])
def test_a_few_rows_between_two_stray_quotes_are_named(tmp_path: Path, apart: int) -> None:
    rows = [f"{number}.png,cat,title {number}\n" for number in range(40)]
    rows[5], rows[5 + apart] = '5.png,cat,"title 5\n', f'{5 + apart}.png,cat,title"\n'
    found = read(tmp_path / "t.csv", HEAD + "".join(rows))
    assert len(found) == 40 - apart
    assert [record.doubt for record in found if record.doubt] == [f"lines 7 to {7 + apart}"]
    with pytest.raises(DataError, match=rf"t\.csv: lines 7 to {7 + apart} are one row, and each could be"):
        [*whole_records(tmp_path / "t.csv")]


def test_a_text_of_several_lines_is_no_doubt(tmp_path: Path) -> None:
    texts = ["a cat, sitting\nand a dog, standing, there\nthe end", "one, two\n\nthree", "a\nb, c, d\ne"]
    found = read(
        tmp_path / "t.csv", HEAD + "".join(f'{n}.png,cat,"{text}"\n' for n, text in enumerate(texts))
    )
    assert [record.cells["title"] for record in found] == texts
    assert {record.doubt for record in found} == {""}


def test_ragged_rows_name_their_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "t.csv", HEAD + 'a,b\n"x\ny",b\nc,d,e\n')
    assert [record.problem for record in found] == [
        "line 2: 2 cells under 3 column names",
        "lines 3 to 4: 2 cells under 3 column names",
        "",
    ]


def test_carriage_returns_outside_quotes_cost_their_rows(tmp_path: Path) -> None:
    text = 'a,b\rc,d\n"x\n y\rz" stray\r,1,2\ne,f,g\n'
    found = read(tmp_path / "t.csv", HEAD + text)
    assert "new-line character" in found[0].problem
    assert found[-1].cells == {"file_name": "e", "label": "f", "title": "g"}
    assert sum(not record.problem for record in found) == 1


def test_line_ends_of_old_macs(tmp_path: Path) -> None:
    found = read(tmp_path / "t.csv", 'a,b\r1,2\r3,"4\r5"\r')
    assert [record.cells for record in found] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4\r5"}]
    assert header(tmp_path / "t.csv") == ["a", "b"]


def test_an_unclosed_quote_in_the_header_stops(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column names: line 1: a quote that is not closed"):
        read(tmp_path / "t.csv", 'file_name,"label\n1.png,cat\n')


def test_zeros_in_a_text_are_no_utf16(tmp_path: Path) -> None:
    title = "\0a" * 3000
    assert read(tmp_path / "t.csv", f"{HEAD}1.png,cat,{title}\n")[0].cells["title"] == title


def test_hostile_texts_come_back_from_a_csv(tmp_path: Path) -> None:
    pieces = [
        "\r",
        "\n",
        "\r\n",
        '"',
        "'",
        ",",
        ";",
        "\t",
        "=",
        "+1",
        "-",
        "@",
        "\0",
        "ä",
        " ",
        "x",
        "[",
        "sep=;",
    ]
    draw = random.Random(0)
    texts = ["".join(draw.choices(pieces, k=draw.randrange(6))) for _ in range(6000)]
    table = pd.DataFrame({"title": texts, "tags": texts[::-1], "end": "x"})
    for formulas in ("escape", "keep"):
        write_csv(tmp_path / "t.csv", table, formulas=formulas)
        found = [*csv_records(tmp_path / "t.csv", "auto")]
        assert not any(record.problem for record in found)
        assert [record.cells for record in found] == table.to_dict("records")


def test_mutated_tables_lose_no_line(tmp_path: Path) -> None:
    """A changed character costs at most the two rows that it is between."""
    rows = "".join(f'{number}.png,cat,"title, {number}"\n' for number in range(12))
    whole = HEAD + rows
    draw = random.Random(1)
    for _ in range(300):
        at = draw.randrange(len(HEAD), len(whole))
        text = whole[:at] + draw.choice('",\n\rx') + whole[at + draw.randrange(2) :]
        found = read(tmp_path / "t.csv", text)
        assert len(found) >= 11, text
        assert sum(not record.problem for record in found) >= 10, text


LIMIT = 1000


def test_text_that_is_not_utf8_is_read_with_replacement_characters(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"title": text, "n": [1, 2, 3]}), tmp_path / "t.parquet")
    found = [*parquet_records(tmp_path / "t.parquet", None, LIMIT)]
    assert [record.cells for record in found] == [
        {"title": "good", "n": 1},
        {"title": "caf\N{REPLACEMENT CHARACTER}", "n": 2},
        {"title": None, "n": 3},
    ]
    assert [record.replaced for record in found] == [False, True, False]


def test_a_date_out_of_range_costs_its_row_and_none_where_it_is_not_read(tmp_path: Path) -> None:
    when = pa.array([0, 10**15, 1], pa.timestamp("s"))
    pq.write_table(pa.table({"title": ["a", "b", "c"], "when": when}), tmp_path / "t.parquet")
    found = [*parquet_records(tmp_path / "t.parquet", None, LIMIT)]
    assert [bool(record.problem) for record in found] == [False, True, False]
    assert found[1].problem.startswith("row 2: ")
    found = [*parquet_records(tmp_path / "t.parquet", ["title"], LIMIT)]
    assert [record.cells for record in found] == [{"title": "a"}, {"title": "b"}, {"title": "c"}]


def test_a_row_group_above_the_limit_is_one_row_that_says_so(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", 5)  # groups of 2, 2 and 1
    manifest, summary = scan_it(tmp_path / "t.parquet", tmp_path / "out", max_group_rows=1)
    assert summary["samples"] == 1
    assert summary["quarantined_by"] == {"large-group": 2}
    assert "rows 3 to 4: 2 in row group 2" in manifest.frame["detail"].tolist()


@pytest.mark.parametrize("features", [[], {"label": []}, {"label": {"names": 5}}, None, "x"])
def test_metadata_that_is_no_mapping(features: object) -> None:
    text = json.dumps({"info": {"features": features}})
    assert class_labels(pa.schema([("label", pa.int64())], metadata={"huggingface": text})) == {}
    assert class_labels(pa.schema([], metadata={"huggingface": "[1]"})) == {}
    assert class_labels(pa.schema([], metadata={"huggingface": "[" * 100_000})) == {}


def test_structs_whose_bytes_are_no_binary(tmp_path: Path) -> None:
    images = [{"bytes": "text", "path": "/etc/passwd"}, {"bytes": None, "path": "/etc/passwd"}]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="2 rows, none of which can be used"):
        scan_it(tmp_path / "t.parquet", tmp_path / "out")


def test_the_path_beside_empty_bytes_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(1))
    images = [{"bytes": None, "path": str(tmp_path / "secret.png")}, {"bytes": png(2), "path": "2.png"}]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "t.parquet")
    manifest, _ = scan_it(tmp_path / "t.parquet", tmp_path / "out")
    assert [*reasons(manifest).values()] == ["no-image"]


@pytest.mark.parametrize("content", [b"PAR1 nonsense PAR1", b"", None])
def test_a_second_shard_that_is_broken_or_of_another_type(tmp_path: Path, content: bytes | None) -> None:
    write_parquet(tmp_path / "d" / "train-00000-of-00002.parquet", 2)
    second = tmp_path / "d" / "train-00001-of-00002.parquet"
    if content is None:
        pq.write_table(pa.table({"image": [1, 2], "label": [[["x"]], [["y"]]]}), second)
    else:
        second.write_bytes(content)
    _, summary = scan_it(tmp_path / "d", tmp_path / "out")
    assert summary["samples"] == 2
    assert summary["quarantined_by"] == ({"no-image": 2} if content is None else {"broken-file": 1})


def test_mutated_files_never_raise_anything_else(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", 6)
    whole, draw = (tmp_path / "t.parquet").read_bytes(), random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "m.parquet").write_bytes(damaged)
        try:
            found = [*parquet_records(tmp_path / "m.parquet", None, LIMIT)]
        except DataError:
            continue
        assert [record.number for record in found] == [*range(1, len(found) + 1)] or len(found) <= 6
