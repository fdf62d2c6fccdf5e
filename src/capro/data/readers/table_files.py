"""Table files as records: CSV and TSV, JSONL, Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

from capro.config import MAX_GROUP_ROWS
from capro.data.readers.base import Intake, Record
from capro.data.readers.columns import REPLACED, Columns, FieldNames, json_object, valid_text
from capro.data.readers.csv_rows import csv_header, csv_records
from capro.data.readers.parquet_rows import open_parquet, parquet_records
from capro.data.readers.text_files import MAX_LINE, WINDOWS, Lines, encoding_of, open_text
from capro.data.readers.writing import ESCAPED, written_texts
from capro.errors import DataError
from capro.places import Place, state_of

CLOSE = "close the quote in the first of these lines; a cell with such lines has to be left out"
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def header(path: Place, encoding: str = "auto") -> list[str]:
    """The column names of a table file; those of a JSONL file are the fields of all its records."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if kind == ".jsonl":
        return [*_fields(path, encoding, *state_of(path))]
    return [name for name in csv_header(path, encoding) if name != ESCAPED]


def records(
    path: Place,
    encoding: str = "auto",
    *,
    wanted: Collection[str] | None = None,
    max_group_rows: int = MAX_GROUP_ROWS,
) -> Iterator[Record]:
    """Every row of a CSV, TSV, JSONL or Parquet file (by its ending), bad ones with their problem.

    Args:
        path: The file.
        encoding: Of a text file.
        wanted: The columns that are needed, where others cost time (Parquet); None: all.
        max_group_rows: The most rows of a Parquet row group.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return parquet_records(path, wanted, max_group_rows)
    return _jsonl(path, encoding) if kind == ".jsonl" else csv_records(path, encoding)


def whole_records(path: Place) -> Iterator[Record]:
    """Every row of a small table that a person made: one that cannot be read is an error."""
    for record in records(path):
        if record.problem:
            raise DataError(f"{path}: {record.problem}", hint="correct the row, or leave it out")
        if record.doubt:
            raise DataError(f"{path}: {record.doubt} are one row, and each could be a row", hint=CLOSE)
        yield record


def noting_doubts(rows: Iterable[Record], file: Place, doubts: list[str]) -> Iterator[Record]:
    """Rows of a file as they are; places where lines of one row could be rows are appended to a list."""
    for record in rows:
        if record.doubt:
            doubts.append(f"{file.name}, {record.doubt}")
        yield record


def file_intake(
    files: Sequence[Place], names: Sequence[str], columns: Columns, encoding: str, doubts: Sequence[str] = ()
) -> Intake:
    """How table files of the same columns were read."""
    used = columns.used()
    found = {file.name: encoding_of(file) for file in files} if encoding == "auto" else {}
    return Intake(
        columns=used,
        unused=[valid_text(name) for name in names if name.strip() and name not in used.values()],
        guessed_encodings={name: each for name, each in found.items() if each == WINDOWS},
        doubtful_lines=doubts,
    )


@lru_cache(maxsize=8)
def _fields(path: Place, encoding: str, *_state: int | str) -> tuple[str, ...]:
    """The names of all fields, in the order in which they first occur. One pass over the file."""
    found = FieldNames()
    for record in _jsonl(path, encoding):
        found.add(record.cells)
    return tuple(found)


def _jsonl(path: Place, encoding: str) -> Iterator[Record]:
    with open_text(path, encoding) as file:
        lines = Lines(file)
        for line in lines:
            if not line.strip():
                continue
            cells, problem = ({}, f"more than {MAX_LINE:,} characters") if lines.cut else json_object(line)
            cells = written_texts(cells)
            place = f"line {lines.number}: {problem}" if problem else ""
            yield Record(lines.number, cells, place, REPLACED in line)
