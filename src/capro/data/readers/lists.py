"""Text files with one entry per line, as published data sets have them; an error names the line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from capro.errors import DataError
from capro.regular_files import open_regular


@dataclass(frozen=True)
class Line:
    """A line that is not blank, and where it stands."""

    path: Path
    number: int
    text: str

    def fail(self, problem: str, hint: str) -> NoReturn:
        """Refuse the line."""
        raise DataError(f"{self.path}:{self.number}: {problem}", hint=hint)

    def integer(self, text: str, low: int, high: int, what: str) -> int:
        """A number of the line within low and high, both included."""
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
        if value is None or not low <= value <= high:
            self.fail(
                f"{what} is {text[:80]!r}, expected a number from {low} to {high}",
                "use the list as it was published",
            )
        return value


def read_lines(path: Path, *, hint: str) -> Iterator[Line]:
    """Lines of a file without their ends, blank ones left out; what is not UTF-8 is replaced.

    Args:
        path: The file.
        hint: What to do if it cannot be opened.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint=hint) from None
    with file:
        for number, raw in enumerate(file, start=1):
            text = raw.decode("utf-8-sig", "replace").strip()
            if text:
                yield Line(path, number, text)


def paired_lines(first: Path, second: Path, *, hint: str) -> Iterator[tuple[Line, Line]]:
    """Lines of two files that belong together; both must have as many."""
    both = zip_longest(read_lines(first, hint=hint), read_lines(second, hint=hint))
    for number, (line, other) in enumerate(both, start=1):
        if line is None or other is None:
            longer, shorter = (line, second) if line else (other, first)
            longer.fail(
                f"entry {number}, but {shorter.name} has only {number - 1}",
                "download both files again: they belong together line by line",
            )
        yield line, other
