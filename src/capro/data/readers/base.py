"""What formats share: readers, which yield every row of a source with its problem; writers; tables as plain values."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TextIO

import pandas as pd

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.errors import CaproError, described
from capro.stores import AnyPath

P = ParamSpec("P")


@dataclass(frozen=True)
class ClassHint:
    """What a source knows of a class: its label, its WordNet sense, what was searched for."""

    name: str
    sense: str | None = None
    query: str | None = None


@dataclass(frozen=True)
class Record:
    """A row of a table file: its number (1 is the first after the header), cells, or a problem."""

    number: int
    cells: Mapping[str, Any]
    problem: str = ""
    replaced: bool = False  # has bytes outside the encoding: read with replacement characters
    reason: str = "bad-row"  # of the problem
    doubt: str = ""  # its lines, where each of them could be a row: a quote may not be closed


@dataclass
class ReadingNotes:
    """How a source was read, for the summary.

    Attributes:
        counts: Of rows, files and the like, by what was counted.
        columns: The columns that were read, by purpose.
        unused: Columns that were not read.
        guessed_encodings: Of text files that are not UTF-8 and do not say what they are, by name.
        ignored_tables: Tables beside the pictures of a folder that were not read.
        doubtful_lines: Where one row has several lines, each of which could be a row.
    """

    counts: Counter[str] = field(default_factory=Counter)
    columns: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    guessed_encodings: dict[str, str] = field(default_factory=dict)
    ignored_tables: list[str] = field(default_factory=list)
    doubtful_lines: list[str] = field(default_factory=list)


class TooDeep(Exception):
    """A cell is nested deeper than ``data.max_nesting``."""


def guarded(bare: Row, make: Callable[Concatenate[Row, P], Row], *args: P.args, **options: P.kwargs) -> Row:
    """A row as it is made of a bare one; where that raises an error, the bare one with the problem.

    So no row stops a scan. What a user must mend first (``CaproError``) and a lack of memory are raised as they are.

    >>> row = guarded(Row("train/1", "1.png"), lambda bare: [].pop())
    >>> row.problem, row.detail.partition(" (")[0]
    ('unexpected', 'IndexError: pop from empty list')
    """
    try:
        return make(bare, *args, **options)
    except (CaproError, MemoryError):
        raise
    except TooDeep as problem:
        bare.problem, bare.detail = "too-deep", str(problem)
    except Exception as error:
        bare.problem, bare.detail = "unexpected", described(error)
    return bare


class Reader:
    """A source that gives rows, in a stable order.

    Attributes:
        source: Where the images of its rows are.
    """

    source: Source

    @cached_property
    def notes(self) -> ReadingNotes:
        """How the source was read, complete after ``rows``."""
        return ReadingNotes()

    def rows(self) -> Iterator[Row]:
        """Every row of the source."""
        raise NotImplementedError

    def count(self) -> int | None:
        """How many rows there will be, where that is cheap to know: for the progress bar."""
        return None

    def classes(self) -> list[ClassHint]:
        """The classes that a published dataset brings with it; empty for any other source."""
        return []

    def listing(self) -> Sequence[AnyPath]:
        """The files whose names, sizes and times decide whether the source is scanned again."""
        return sorted(Path(self.source.root).rglob("*"))


@dataclass(frozen=True)
class Format:
    """A layout of data: how it is recognised, read and written.

    Attributes:
        layout: What a source of this format must be like; the hint where it is not.
        recognises: Whether a path is laid out so.
        readers: The readers of a path; a split as the last argument is that of every row.
        own_splits: Whether the layout has a training and a test part of its own.
        in_stores: Whether it is read from an object store as well; only then is its path no ``Path``.
        writers: How an export writes it, by the name for ``--to``.
    """

    layout: str
    recognises: Callable[[Any, DataSettings], bool]
    readers: Callable[[Any, DataSettings, str | None], Sequence[Reader]]
    own_splits: bool = False
    in_stores: bool = False
    writers: Mapping[str, Writer] = field(default_factory=dict)


# --- writing --------------------------------------------------------------------------------------

FORMULA_MODES = ("escape", "keep")
IMAGE_MODES = ("none", "link", "copy")
SHARD_SIZE = 10_000  # samples per tar or Parquet shard
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # beginnings of what spreadsheets compute
LABELS = ("label", "given_label")
IDENTITY = "capro_id"  # column of the samples' ids, which no other program writes
ESCAPED = "capro_escaped"  # column that names the escaped cells of a row
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


class Pictures(Protocol):
    """Names of the exported pictures, and ways to write or read them (export.cleaned)."""

    names: list[str]
    mode: str
    formulas: str
    folder: Path

    def read(self, number: int) -> bytes: ...
    def path(self, number: int) -> Path | None: ...
    def write_all(self, below: str = "") -> None: ...
    def in_shards(self, table: pd.DataFrame, write: Callable[[OutputShard], None]) -> None: ...


@dataclass(frozen=True)
class OutputShard:
    """Some rows of an export, which another process may write.

    Attributes:
        number: Of the shard.
        count: Of the export's shards.
        begin: Number of its first row in the export.
        table: Its rows.
        pictures: Theirs, numbered from 0.
    """

    number: int
    count: int
    begin: int
    table: pd.DataFrame
    pictures: Pictures


@dataclass(frozen=True)
class Writer:
    """How cleaned data is written in a format.

    Attributes:
        write: Gets a new folder, the cleaned table, its pictures and the names of the classes.
        images: What may be done with the pictures; the first is done unless another is asked for.
        below: Folder of the pictures in the export.
        by_class: With one label a picture lies there in the folder of its class.
        entry: The file that ``capro scan`` is given; the folder itself if empty.
        card: Whether a card, README.md, belongs to it.
    """

    write: Callable[[Path, pd.DataFrame, Pictures, Sequence[str]], None]
    images: tuple[str, ...] = IMAGE_MODES
    below: str = ""
    by_class: bool = False
    entry: str = ""
    card: bool = False


def write_csv(path: Path, table: pd.DataFrame, *, formulas: str = "escape") -> None:
    """A CSV in which lists are JSON, as ``capro scan`` reads them.

    Args:
        path: The file.
        table: Its rows.
        formulas: ``escape`` puts an apostrophe before a text that a spreadsheet would compute, and names the
            columns of such texts in the last column, ``capro_escaped``, by which ``capro scan`` takes it away
            again; without such a text there is no such column. ``keep`` writes texts as they are. A label that
            would be read as a list of labels is always escaped.
    """
    records = plain_records(table)
    marked = [_escaped_columns(record, formulas) for record in records]
    escaped = any(marked)  # asked once: for each row it would be quadratic
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv_writer(file)
        writer.writerow([*table.columns, *([ESCAPED] if escaped else [])])
        for record, names in zip(records, marked, strict=True):
            cells = [f"'{value}" if name in names else _cell(value) for name, value in record.items()]
            writer.writerow([*cells, *([" ".join(names)] if escaped else [])])


def write_samples(name: str, out: Path, table: pd.DataFrame, pictures: Pictures, _: Sequence[str]) -> None:
    """A CSV of this name, and the pictures where they were asked for."""
    write_csv(out / name, table, formulas=pictures.formulas)
    pictures.write_all()


def csv_writer(file: TextIO) -> Any:
    """A writer of lines that end with a line feed, in which a cell with any line break is quoted.

    With a line feed alone as the end of lines, csv does not quote a carriage return (Python 3.11 and 3.12).
    """
    return csv.writer(_LineFeeds(file), lineterminator="\r\n")


class _LineFeeds:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> int:
        """One row, as csv.writer gives it."""
        return self._file.write(row.removesuffix("\r\n") + "\n")


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def is_formula(value: Any) -> bool:
    """Whether a spreadsheet would compute a text instead of showing it; a plain number may be computed.

    >>> is_formula("=1+1"), is_formula("-1.5"), is_formula("a=b"), is_formula(-1.5)
    (True, False, False, False)
    """
    return isinstance(value, str) and value.startswith(FORMULAS) and not _NUMBER.fullmatch(value)


def looks_listed(value: Any) -> bool:
    """Whether a text would be read as a list.

    >>> looks_listed("[1]"), looks_listed("cat"), looks_listed(["cat"]), looks_listed(WrittenText("[1]"))
    (True, False, False, False)
    """
    text = value.strip() if isinstance(value, str) and not isinstance(value, WrittenText) else ""
    return text.startswith("[") and text.endswith("]")


class WrittenText(str):
    """A cell that was a text when it was written, whatever it looks like."""

    __slots__ = ()


def written_texts(cells: dict[str, Any]) -> dict[str, Any]:
    """Cells of a format that knows lists: in our own exports a label that is a text is one label.

    >>> looks_listed(written_texts({"capro_id": "a", "label": "[1]"})["label"])
    False
    """
    if IDENTITY in cells:
        for name in LABELS:
            if looks_listed(cells.get(name)):
                cells[name] = WrittenText(cells[name])
    return cells


def _escaped_columns(record: Mapping[str, Any], formulas: str) -> list[str]:
    computed = [name for name, value in record.items() if formulas == "escape" and is_formula(value)]
    return computed + [name for name in LABELS if looks_listed(record.get(name))]


def unescaped(cells: Mapping[str, str]) -> dict[str, str]:
    """The cells of a row as they were before ``write_csv`` escaped formulas.

    >>> unescaped({"title": "'=1+1", "tags": "'a", "capro_escaped": "title"})
    {'title': '=1+1', 'tags': "'a"}
    """
    names = cells.get(ESCAPED, "").split()
    return {
        name: WrittenText(text.removeprefix("'")) if name in names else text
        for name, text in cells.items()
        if name != ESCAPED
    }


def plain_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with cells as Python knows them: NaN becomes None, floats have six digits."""
    rows = table.itertuples(index=False, name=None)
    return [dict(zip(table.columns, map(_plain, row), strict=True)) for row in rows]


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 6)
