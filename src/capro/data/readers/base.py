"""What every reader and every format offers. A reader yields every row of its source, problems included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capro.config import DataSettings
from capro.data.manifest import Row, RowProblem, Source
from capro.data.readers.writing import Writer
from capro.errors import CaproError, described
from capro.stores import Place


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


@dataclass(frozen=True)
class Intake:
    """How the columns and files of a source were read.

    Attributes:
        columns: The columns that were read, by purpose.
        unused: Columns that were not read.
        guessed_encodings: Of text files that are not UTF-8 and do not say what they are, by name.
        ignored_tables: Tables beside the pictures of a folder that were not read.
        doubtful_lines: Places where one row has several lines, each of which could be a row.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    unused: Sequence[str] = ()
    guessed_encodings: Mapping[str, str] = field(default_factory=dict)
    ignored_tables: Sequence[str] = ()
    doubtful_lines: Sequence[str] = ()


def guarded(make: Callable[[], Row], *, id: str, split: str, path: str = "") -> Row:
    """A row; where making it raises an error, the row with that problem, so that no row stops a scan.

    What a user must mend first (``CaproError``) and a lack of memory are raised as they are.

    Args:
        make: Makes the row.
        id: Of the row with the problem.
        split: Of the row with the problem.
        path: Of the row with the problem.

    >>> row = guarded(lambda: Row(id=[].pop(), path=""), id="train/1", split="train")
    >>> row.problem, row.detail.partition(" (")[0]
    ('unexpected', 'IndexError: pop from empty list')
    """
    try:
        return make()
    except (CaproError, MemoryError):
        raise
    except RowProblem as problem:
        return Row(id, path, split, problem=problem.reason, detail=problem.detail)
    except Exception as error:
        return Row(id, path, split, problem="unexpected", detail=described(error))


class Reader:
    """A source that gives rows, in a stable order.

    Attributes:
        source: Where the images of its rows are.
        notes: Counts for the summary, complete after ``rows``.
        revision: Another word where a version of capro reads the same files otherwise: they are scanned again.
    """

    source: Source
    notes: dict[str, int]
    revision: str = ""

    def rows(self) -> Iterator[Row]:
        """Every row of the source."""
        raise NotImplementedError

    def count(self) -> int | None:
        """How many rows there will be, where that is cheap to know: for the progress bar."""
        return None

    def classes(self) -> list[ClassHint]:
        """The classes that a published data set brings with it; empty for any other source."""
        return []

    def intake(self) -> Intake:
        """How its columns and files were read, complete after ``rows``; nothing for a fixed layout."""
        return Intake()

    def listing(self) -> Sequence[Place]:
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
