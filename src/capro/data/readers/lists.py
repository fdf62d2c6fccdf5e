"""Text files with one entry per line, as published data sets have them; a mistake is told by line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from capro.errors import DataError


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


def lines(path: Path, *, hint: str) -> Iterator[Line]:
    """Lines of a file without their ends, blank ones left out; what is not UTF-8 is replaced.

    Args:
        path: The file.
        hint: What to do if it cannot be opened.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint=hint) from None
    with file:
        for number, raw in enumerate(file, start=1):
            text = raw.decode("utf-8-sig", "replace").strip()
            if text:
                yield Line(path, number, text)


def pairs(
    first: Iterator[Line], second: Iterator[Line], paths: tuple[Path, Path]
) -> Iterator[tuple[Line, Line]]:
    """Lines of two files that belong together; both must have as many."""
    count = 0
    for count, line in enumerate(first, start=1):
        other = next(second, None)
        if other is None:
            line.fail(
                f"entry {count}, but {paths[1].name} has only {count - 1}",
                "fetch both files again: they belong together line by line",
            )
        yield line, other
    extra = next(second, None)
    if extra is not None:
        extra.fail(
            f"entry {count + 1}, but {paths[0].name} has only {count}",
            "fetch both files again: they belong together line by line",
        )
