"""CSV files with quotes that are not closed, carriage returns and other damage."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest

from capro.data.readers.base import Record
from capro.data.readers.table_files import csv_header, csv_records, whole_records
from capro.data.readers.writing import write_csv
from capro.errors import DataError

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
    assert csv_header(tmp_path / "t.csv", "auto") == ["a", "b"]


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
