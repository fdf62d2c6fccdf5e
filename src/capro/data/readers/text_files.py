"""Text files: their encoding, their lines within a limit, and published lists with one entry per line."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO

from capro.errors import DataError
from capro.files import open_regular
from capro.stores import AnyPath, open_bytes

UTF8 = "utf-8-sig"  # UTF-8, with or without a mark at the start
WINDOWS = "cp1252"
MARKS = [  # at the start of a file; the longer ones first
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, UTF8),
]  # fmt: skip
BYTES_AT_ONCE = 1 << 20
HEAD = 64  # bytes that show UTF-16 without a mark: further on a text may hold zeros of its own
MAX_LINE = 32 << 20  # characters; captions of megabytes are fine, a file without line ends is not


def encoding_of(path: AnyPath, chosen: str = "auto") -> str:
    """The encoding in which a text file is read.

    Args:
        path: The file.
        chosen: A name, or ``auto`` to find out, in one pass over the file.
    """
    if chosen != "auto":
        return UTF8 if codecs.lookup(chosen).name == "utf-8" else chosen
    try:
        with open_bytes(path) as file:
            return _detected(file)
    except OSError as error:
        raise _unreadable(path, error) from None


def _detected(file: BinaryIO) -> str:
    """By the first bytes, else UTF-8 if the file is valid or nearly so, else cp1252."""
    head = file.read(HEAD)
    for mark, name in MARKS:
        if head.startswith(mark):
            return name
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if zeros.count(0) > len(zeros) // 2:  # every second byte of Latin letters
            return name
    good, bad = _non_ascii(file)
    return UTF8 if good >= bad else WINDOWS


def _non_ascii(file: BinaryIO) -> tuple[int, int]:
    """Characters beyond ASCII that are right in UTF-8, and bytes that are not."""
    file.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # a wrong byte: U+DC80 to U+DCFF
    good = bad = 0
    while chunk := file.read(BYTES_AT_ONCE):
        text = decoder.decode(chunk)
        wrong = len(text) - len(text.encode("utf-8", "ignore").decode("utf-8"))
        good += len(text) - len(text.encode("ascii", "ignore")) - wrong
        bad += wrong
    return good, bad


def open_text(path: AnyPath, encoding: str) -> TextIO:
    """A text file; what is outside its encoding becomes replacement characters. Only ``\\n`` ends a line."""
    detected = encoding_of(path, encoding)
    try:
        return io.TextIOWrapper(open_bytes(path), encoding=detected, errors="replace", newline="\n")
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: AnyPath, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror}", hint="give a file that can be read")


def bounded_lines(file: TextIO) -> Iterator[tuple[str, bool]]:
    """Lines of a text file, in bounded memory, and whether each was cut: of a longer line MAX_LINE characters come."""
    while line := file.readline(MAX_LINE):
        cut = len(line) == MAX_LINE and not line.endswith("\n")
        if cut:
            while (rest := file.readline(MAX_LINE)) and not rest.endswith("\n"):
                pass
        yield line, cut


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
