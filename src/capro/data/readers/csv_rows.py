"""CSV files as records. One row that cannot be read costs that row alone.

A quote that is never closed would make one cell of all lines up to the next quote. Where that has happened (the
file ends within a quote, text follows a closing quote, or lines of a cell are rows of the table), the line with
the quote is a bad row, and reading goes on with the next line. A few lines in a cell that could be rows may also be
a text with separators in it: they are read as a text, and named. Cost: as csv.reader, a list of lines per row.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TextIO

from capro.data.readers.base import Record
from capro.data.readers.columns import REPLACED
from capro.data.readers.text_files import MAX_LINE, Lines, open_text
from capro.data.readers.writing import ESCAPED, unescaped
from capro.errors import DataError
from capro.places import Place

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
