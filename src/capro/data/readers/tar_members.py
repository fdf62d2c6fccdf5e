"""Members of a tar, by their headers alone: nothing is extracted, no size is believed, nothing is repeated.

Python's tarfile goes back for a negative size and never ends (CVE-2025-8194), takes a damaged header for the end of
the archive, and reads a header of any length into memory. Here bytes that are no header are a ``Gap``, and reading
goes on at the next block that is one. Formats: ustar, pax (path, size), GNU long names. Cost: O(members).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Literal

from capro.stores import AnyPath, ObjectPath, open_bytes

BLOCK = 512
AT_ONCE = 1 << 20  # bytes, where the next header is looked for
MAX_HEADER = 1 << 20  # bytes of a long name or of pax records
REGULAR = b"0\x007"
WITHOUT_DATA = b"123456"  # links, devices, folders, pipes
LONG_NAME, LONG_LINK, SPARSE = b"L", b"K", b"S"
PAX = b"xX"
EXTENSIONS = LONG_NAME + LONG_LINK + PAX + b"g"  # headers that describe the next member
READ_AHEAD = 256 << 10  # bytes: headers and texts that lie near each other are one call of the system
REQUEST = 8 << 20  # bytes that an object store is asked for at once


@dataclass
class Ranges:
    """Bytes of a file by range.

    Attributes:
        file: The file.
        length: Of the file in bytes.
        streamed: Whether the bytes come from an object store: those that are at hand should be used now.
    """

    file: BinaryIO
    length: int
    streamed: bool

    def read(self, size: int, at: int) -> bytes:
        """Up to ``size`` bytes from an offset on; fewer only where the file ends."""
        self.file.seek(at)
        return self.file.read(size)


@contextmanager
def open_ranges(path: AnyPath) -> Iterator[Ranges]:
    """A regular file or an object, to read ranges from, mostly in ascending order."""
    streamed = isinstance(path, ObjectPath)
    with open_bytes(path, buffering=REQUEST if streamed else READ_AHEAD) as file:
        yield Ranges(file, file.seek(0, os.SEEK_END), streamed)


@dataclass(frozen=True)
class Member:
    """A member whose bytes are all there; those of a sparse file do not lie in one piece."""

    name: str
    offset: int
    size: int
    kind: Literal["file", "sparse", "folder", "other"]


@dataclass(frozen=True)
class Gap:
    """Bytes that are no member: a damaged header, a member that the file ends in, or a missing end.

    Attributes:
        offset: Where it begins.
        detail: What is wrong.
        name: Of the member, where its header can be read.
        final: Nothing follows.
        empty: No byte is lost, only the mark of the end.
    """

    offset: int
    detail: str
    name: str = ""
    final: bool = False
    empty: bool = False


class _BadHeader(ValueError):
    """A block that is no header, or one that cannot be right; ``name`` of its member where that is known."""

    def __init__(self, problem: str, name: str = "") -> None:
        super().__init__(problem)
        self.name = name


def members(file: Ranges) -> Iterator[Member | Gap]:
    """Every member and every gap of a tar, in order."""
    length = file.length
    if length == 0:
        yield Gap(0, "has no bytes", final=True)
        return
    at, name, pax = 0, "", dict[str, str]()  # name and pax: what was said of the next member
    while at < length:
        block = file.read(BLOCK, at)
        if not any(block):
            at = _next_content(file, at)
            if at >= length:
                return
            continue
        begin = at
        try:
            header = _Header.parse(block)
            size = _size(header, pax)
            at += BLOCK
            if header.kind in EXTENSIONS:
                content = _extension(file, at, size)
                name = _text(content) if header.kind == LONG_NAME else name
                pax = _pax(content) if header.kind in PAX else pax
                at += _blocks(size)
                continue
            called = pax.get("path") or name or header.name
            if at + size > length:
                raise _BadHeader(f"ends within {called}", called)
            yield _member(header, called, at, size, pax)
            at += _blocks(size)
            if header.kind == SPARSE:  # with further blocks of its map before its bytes
                at = _next_header(file, at)
        except _BadHeader as bad:
            at = _next_header(file, begin + BLOCK)
            yield Gap(begin, f"byte {begin}: {bad}", bad.name, final=at >= length)
            if at >= length:
                return
        name, pax = "", {}
    yield Gap(length, "has no end-of-archive mark", final=True, empty=True)


def _extension(file: Ranges, at: int, size: int) -> bytes:
    """What an extended header says of the next member."""
    content = file.read(size, at) if size <= MAX_HEADER else b""
    if len(content) < size:
        raise _BadHeader(f"an extended header of {size} bytes")
    return content


def _member(header: _Header, name: str, data: int, size: int, pax: dict[str, str]) -> Member:
    if header.kind == b"5" or (header.kind in REGULAR and name.endswith("/")):
        return Member(name, data, size, "folder")
    if header.kind == SPARSE or any(key.startswith("GNU.sparse.") for key in pax):
        return Member(pax.get("GNU.sparse.name", name), data, size, "sparse")
    return Member(name, data, size, "file" if header.kind in REGULAR else "other")


@dataclass(frozen=True)
class _Header:
    name: str
    size: int
    kind: bytes

    @staticmethod
    def parse(block: bytes) -> _Header:
        if len(block) < BLOCK:
            raise _BadHeader("the file ends within a header")
        if not _has_checksum(block):
            raise _BadHeader("no header")
        kind, name = block[156:157], _text(block[:100])
        prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
        return _Header(f"{prefix}/{name}" if prefix else name, _number(block[124:136]), kind)


def _has_checksum(block: bytes) -> bool:
    try:
        written = _number(block[148:156])
    except _BadHeader:
        return False
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    return written == total or written == total - 256 * sum(byte > 127 for byte in rest)  # of signed bytes


def _number(field: bytes) -> int:
    """Octal digits, or a binary number after a byte 128; a negative one cannot be right."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if digits and not (digits.isdigit() and digits.translate(None, b"89") == digits):
        raise _BadHeader("a negative size or no number")
    return int(digits or b"0", 8)


def _size(header: _Header, pax: dict[str, str]) -> int:
    """The bytes that follow a header."""
    written = pax.get("size")
    if written is not None and not (written.isascii() and written.isdigit() and len(written) < 19):
        raise _BadHeader(f"a size of {written[:40]!r}")
    size = header.size if written is None else int(written)
    return 0 if header.kind in WITHOUT_DATA else size


def _pax(content: bytes) -> dict[str, str]:
    """The records of an extended header, each ``LENGTH KEY=VALUE`` and a line feed."""
    records: dict[str, str] = {}
    at = 0
    while at < len(content) and content[at : at + 1] != b"\0":
        digits, blank, _ = content[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() and blank else 0
        record = content[at : at + length]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not record.endswith(b"\n") or len(record) != length or not equals:
            raise _BadHeader("extended records that cannot be read")
        records[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
        at += length
    return records


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _blocks(size: int) -> int:
    """Bytes that a member takes: whole blocks."""
    return -(-size // BLOCK) * BLOCK


def _next_content(file: Ranges, at: int) -> int:
    """Where zeros end; a tar that was appended to another is read as well."""
    while at < file.length:
        chunk = file.read(AT_ONCE, at)
        rest = chunk.lstrip(b"\0")
        if rest:
            return at + (len(chunk) - len(rest)) // BLOCK * BLOCK
        at += len(chunk) or file.length
    return file.length


def _next_header(file: Ranges, at: int) -> int:
    """The next block that is the header of a member; the file's length if there is none."""
    while at < file.length:
        chunk = file.read(AT_ONCE, at)
        for begin in range(0, len(chunk) - BLOCK + 1, BLOCK):
            if chunk[begin + 257 : begin + 262] == b"ustar" and _has_checksum(chunk[begin : begin + BLOCK]):
                return at + begin
        at += AT_ONCE
    return file.length
