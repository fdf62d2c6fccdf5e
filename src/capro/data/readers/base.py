"""What every reader offers. A reader yields every row of its source, problems included; it drops none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capro.data.manifest import Row, Source


@dataclass(frozen=True)
class ClassHint:
    """What a source knows of a class: its label, its WordNet sense, what was searched for."""

    name: str
    sense: str | None = None
    query: str | None = None


class Reader:
    """A source that gives rows, in a stable order.

    Attributes:
        source: Where the images of its rows are.
        notes: Counts for the summary, complete after ``rows``.
    """

    source: Source
    notes: dict[str, int]

    def rows(self) -> Iterator[Row]:
        """Every row of the source."""
        raise NotImplementedError

    def count(self) -> int | None:
        """How many rows there will be, where that is cheap to know: for the progress bar."""
        return None

    def classes(self) -> list[ClassHint]:
        """The classes that a published data set brings with it; empty for any other source."""
        return []

    def listing(self) -> list[Path]:
        """The files whose names, sizes and times decide whether the source is scanned again."""
        return sorted(Path(self.source.root).rglob("*"))
