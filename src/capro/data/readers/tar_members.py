"""Members of a tar, by their headers alone: nothing is extracted, no size is believed, nothing is repeated.

Python's tarfile reads each block here, but not the archive: it goes back for a negative size and never ends
(CVE-2025-8194), takes a damaged header for the end of the archive, and reads a header of any length into memory. Here
bytes that are no header are a ``Gap``, and reading goes on at the next block that is one.

Formats: ustar, pax (path, size), GNU long names. Cost: O(members).
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal

from capro.stores import AnyPath, ObjectPath, open_bytes

BLOCK = 512
AT_ONCE = 1 << 20  # bytes, where the next header is looked for
MAX_HEADER = 1 << 20  # bytes of a long name or of pax records
WITHOUT_DATA = b"123456"  # links, devices, folders, pipes
LONG_NAME, LONG_LINK, SPARSE = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE
PAX = b"xX"
EXTENSIONS = LONG_NAME + LONG_LINK + PAX + b"g"  # headers that describe the next member
READ_AHEAD = 256 << 10  # bytes: headers and texts that lie near each other are one call of the system
REQUEST = 8 << 20  # bytes that an object store is asked for at once


def open_shard(path: AnyPath) -> BinaryIO:
    """A regular file or an object, to read ranges from, mostly in ascending order."""
    return open_bytes(path, buffering=REQUEST if isinstance(path, ObjectPath) else READ_AHEAD)


def read_at(file: BinaryIO, at: int, size: int) -> bytes:
    """Up to ``size`` bytes from an offset on; fewer only where the file ends."""
    file.seek(at)
    return file.read(size)


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


def members(file: BinaryIO) -> Iterator[Member | Gap]:
    """Every member and every gap of a tar, in order."""
    length = file.seek(0, os.SEEK_END)
    if length == 0:
        yield Gap(0, "has no bytes", final=True)
        return
    at, name, pax = 0, "", dict[str, str]()  # name and pax: what was said of the next member
    while at < length:
        block = read_at(file, at, BLOCK)
        if not any(block):
            at = _next_content(file, at)
            if at >= length:
                return
            continue
        begin = at
        try:
            header = _parse(block)
            size = _size(header, pax)
            at += BLOCK
            if header.type in EXTENSIONS:
                content = _extension(file, at, size)
                name = _text(content) if header.type == LONG_NAME else name
                pax = _pax(content) if header.type in PAX else pax
                at += _blocks(size)
                continue
            called = pax.get("path") or name or header.name
            if at + size > length:
                raise _BadHeader(f"ends within {called}", called)
            yield _member(header, called, at, size, pax)
            at += _blocks(size)
            if header.type == SPARSE:  # with further blocks of its map before its bytes
                at = _next_header(file, at)
        except _BadHeader as bad:
            at = _next_header(file, begin + BLOCK)
            yield Gap(begin, f"byte {begin}: {bad}", bad.name, final=at >= length)
            if at >= length:
                return
        name, pax = "", {}
    yield Gap(length, "has no end-of-archive mark", final=True, empty=True)


def _parse(block: bytes) -> tarfile.TarInfo:
    if len(block) < BLOCK:
        raise _BadHeader("the file ends within a header")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        raise _BadHeader("no header") from None


def _extension(file: BinaryIO, at: int, size: int) -> bytes:
    """What an extended header says of the next member."""
    content = read_at(file, at, size) if size <= MAX_HEADER else b""
    if len(content) < size:
        raise _BadHeader(f"an extended header of {size} bytes")
    return content


def _member(header: tarfile.TarInfo, name: str, data: int, size: int, pax: dict[str, str]) -> Member:
    if header.isdir() or (header.isreg() and name.endswith("/")):
        return Member(name, data, size, "folder")
    if header.type == SPARSE or any(key.startswith("GNU.sparse.") for key in pax):
        return Member(pax.get("GNU.sparse.name", name), data, size, "sparse")
    return Member(name, data, size, "file" if header.isreg() else "other")


def _size(header: tarfile.TarInfo, pax: dict[str, str]) -> int:
    """The bytes that follow a header."""
    written = pax.get("size")
    if written is not None and not (written.isascii() and written.isdigit() and len(written) < 19):
        raise _BadHeader(f"a size of {written[:40]!r}")
    size = header.size if written is None else int(written)
    if size < 0:
        raise _BadHeader("a negative size")
    return 0 if header.type in WITHOUT_DATA else size


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


def _next_content(file: BinaryIO, at: int) -> int:
    """Where zeros end; a tar that was appended to another is read as well. The file's length if nothing follows."""
    while chunk := read_at(file, at, AT_ONCE):
        rest = chunk.lstrip(b"\0")
        if rest:
            return at + (len(chunk) - len(rest)) // BLOCK * BLOCK
        at += len(chunk)
    return at


def _next_header(file: BinaryIO, at: int) -> int:
    """The next block that is the header of a member; the file's length or more if there is none."""
    while chunk := read_at(file, at, AT_ONCE):
        for begin in range(0, len(chunk) - BLOCK + 1, BLOCK):
            if chunk[begin + 257 : begin + 262] != b"ustar":
                continue
            with suppress(_BadHeader):
                _parse(chunk[begin : begin + BLOCK])
                return at + begin
        at += len(chunk)
    return at
