"""Table files as records: CSV and TSV, JSONL, Parquet. A row that cannot be read costs that row alone."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TextIO

from capro.config import MAX_GROUP_ROWS
from capro.data.readers.base import Intake, Record
from capro.data.readers.columns import REPLACED, Columns, FieldNames, json_object, valid_text
from capro.data.readers.parquet_rows import open_parquet, parquet_records
from capro.data.readers.text_files import MAX_LINE, WINDOWS, Lines, encoding_of, open_text
from capro.data.readers.writing import ESCAPED, unescaped, written_texts
from capro.errors import DataError
from capro.stores import Place, state_of

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


UNCLOSED = "a quote that is not closed"
MANY_LINES = 20  # of a cell that are rows of the table: more are no chance
LOOKED_AT = 1000  # lines of a cell: what a swallowed table shows at once


def csv_header(path: Place, encoding: str) -> list[str]:
    """The column names."""
    with open_text(path, encoding) as file:
        return _Table(file, path).names


def csv_records(path: Place, encoding: str) -> Iterator[Record]:
    """Every row after the header, bad ones with their problem."""
    with open_text(path, encoding) as file:
        table = _Table(file, path)
        names = table.names
        escaped = ESCAPED in names
        for number, (cells, wrong) in enumerate(table.rows(), start=1):
            problem = wrong
            if not problem and len(cells) != len(names):
                problem = f"{table.place}: {len(cells)} cells under {len(names)} column names"
            found = dict(zip(names, cells, strict=False))
            replaced = any(REPLACED in cell for cell in cells)
            doubt = table.place if table.doubtful and not problem else ""
            yield Record(number, unescaped(found) if escaped else found, problem, replaced, doubt=doubt)


class _Feed(Iterator[str]):
    """Lines as csv.reader asks for them; those of the present row are kept, and can be given again."""

    def __init__(self, file: TextIO) -> None:
        self._lines = Lines(file)
        self._again: deque[str] = deque()
        self.row: list[str] = []
        self._size = 0

    def begin(self) -> None:
        """The row that was read is done with."""
        self.row, self._size = [], 0

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.row.append(line)
        self._size += len(line)
        if self._size >= MAX_LINE:
            raise csv.Error(f"more than {MAX_LINE:,} characters")
        return line

    def give_again(self, lines: Sequence[str]) -> None:
        """These lines come next."""
        self._again.extendleft(reversed(lines))

    @property
    def first(self) -> int:
        """The number of the row's first line, from 1."""
        return self._lines.number - len(self._again) - len(self.row) + 1


class _Table:
    """A CSV file whose header has been read."""

    def __init__(self, file: TextIO, path: Place) -> None:
        csv.field_size_limit(MAX_LINE)
        separator, self._skipped = _separator(file, path)
        self._feed = _Feed(file)
        self._separator = separator
        self._reader = csv.reader(self._feed, delimiter=separator, strict=True)
        self.place = ""
        self.doubtful = False
        self.names: list[str] = []
        cells, problem = next(self.rows(), ([], ""))
        if problem:
            raise DataError(
                f"{path}: the column names: {problem}", hint="correct the first line of the table"
            )
        self.names = cells

    def rows(self) -> Iterator[tuple[list[str], str]]:
        """Cells of each row, or what is wrong with it; ``place`` says where it is, ``doubtful`` if it may be more."""
        feed = self._feed
        while True:
            feed.begin()
            problem = ""
            try:
                cells = next(self._reader)
                if len(feed.row) > 1 and self._swallowed(cells, feed.row[1:-1]):
                    cells, problem = self._first_line()
            except StopIteration:
                return
            except csv.Error as error:
                cells, problem = self._first_line(str(error))
            if cells or problem:
                self.place = self._place()
                self.doubtful = len(feed.row) > 1 and self._like_rows(feed.row)
                yield cells, problem and f"{self.place}: {problem}"

    def _place(self) -> str:
        first = self._feed.first + self._skipped
        last = first + len(self._feed.row) - 1
        return f"line {first}" if first == last else f"lines {first} to {last}"

    def _swallowed(self, cells: list[str], inner: Sequence[str]) -> bool:
        """Whether lines of a row that is well formed are rows of the table themselves."""
        columns = len(self.names)
        if columns < 2:
            return False
        if len(cells) != columns:
            return self._lost_rows(inner)
        return len(inner) >= MANY_LINES and self._like_rows(inner)

    def _like_rows(self, lines: Sequence[str]) -> bool:
        """Whether nearly all of some lines have as many separators as a row of the table."""
        looked, columns = lines[:LOOKED_AT], len(self.names)
        rows = sum(line.count(self._separator) == columns - 1 for line in looked)
        return columns > 1 and rows >= 0.9 * len(looked)

    def _first_line(self, error: str = "") -> tuple[list[str], str]:
        """The first line of a row alone: what is wrong with it, or its cells; the others come again."""
        feed = self._feed
        if len(feed.row) > 1 and not self._lost_rows(feed.row[1:]) and "expected after" in error:
            cells, problem = _leniently(feed.row, self._separator)  # text behind a cell of several lines
            if not problem and len(cells) == len(self.names):
                return cells, ""
        first, *others = feed.row
        feed.give_again(others)
        feed.row = [first]
        return ([], error) if len(first) >= MAX_LINE else _leniently([first], self._separator)

    def _lost_rows(self, lines: Sequence[str]) -> bool:
        return any(line.count(self._separator) == len(self.names) - 1 for line in lines[:LOOKED_AT])


def _leniently(lines: list[str], separator: str) -> tuple[list[str], str]:
    """The cells of a row in which text may follow a closing quote, or what is wrong with it."""
    asked = []

    def given() -> Iterator[str]:
        yield from lines
        asked.append(True)  # the reader wants a further line: it is within a quote

    try:
        cells = next(csv.reader(given(), delimiter=separator), [])
    except csv.Error as error:  # mostly a carriage return outside quotes
        return [], str(error).partition(" - ")[0]
    return ([], UNCLOSED) if asked else (cells, "")


def _separator(file: TextIO, path: Place) -> tuple[str, int]:
    """What separates the cells, and the lines above the header, where it leaves the file.

    Excel may write ``sep=;`` above the header. Line ends of old Macs are recognised by the header's.
    """
    head = file.readline(MAX_LINE)
    if head.lower().startswith("sep=") and len(head.strip()) == 5:
        return head[4], 1
    file.seek(0)
    plain = head.rstrip("\r\n")
    if "\r" in plain and '"' not in plain.partition("\r")[0]:
        file.reconfigure(newline="")  # type: ignore[attr-defined]  # of io.TextIOWrapper
        head = plain.partition("\r")[0]
    if path.suffix.lower() == ".tsv" or head.count("\t") > max(head.count(","), head.count(";")):
        return "\t", 0
    return (";" if head.count(";") > head.count(",") else ","), 0
