"""Bytes of a file by range: of a file of this machine, or of an object whose bytes come in large blocks.

A tar is read from its begin to its end in small steps (headers, texts, pictures). Of an object that would be a
request each; ``Stream`` asks for BLOCK bytes at once and keeps them until they are passed, so that each byte comes
once. Cost: one block of memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from capro.places import ObjectPath, Place
from capro.regular_files import open_descriptor

BLOCK = 8 << 20
NEAR, FAR = 16 << 10, 1 << 20  # bytes that a local file is asked for at least, and where members are small


class Ranges:
    """Bytes of a file by range.

    Attributes:
        length: Of the file in bytes.
        streamed: Whether the bytes come from elsewhere: those that are at hand should be used now.
    """

    length: int
    streamed = False

    def read(self, size: int, at: int) -> bytes:
        """Up to so many bytes from a place on; fewer only where the file ends."""
        raise NotImplementedError


class Descriptor(Ranges):
    """An open file of this machine; headers and texts that lie near each other are one call of the system.

    Where one piece is passed and the next one follows, twice as much is asked for: each call gives up Python's lock,
    and may wait for threads that decode.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.length = os.fstat(descriptor).st_size
        self._begin, self._held, self._piece = 0, b"", NEAR

    def read(self, size: int, at: int) -> bytes:
        if size > NEAR // 2:
            return os.pread(self._descriptor, size, at)
        begin = at - self._begin
        if begin < 0 or begin + size > len(self._held):
            follows = 0 <= begin < len(self._held) + NEAR
            self._piece = min(2 * self._piece, FAR) if follows else NEAR
            self._begin, self._held, begin = at, os.pread(self._descriptor, self._piece, at), 0
        return self._held[begin : begin + size]


class Stream(Ranges):
    """An object that is read from its begin to its end.

    Args:
        path: The object.
        block: Bytes of a request.
    """

    streamed = True

    def __init__(self, path: ObjectPath, block: int = BLOCK) -> None:
        self._path, self._block = path, block
        self.length = path.size
        self._begin, self._held = 0, b""

    def read(self, size: int, at: int) -> bytes:
        end = min(at + size, self.length)
        if end - at > self._block:  # one request of its own; the block stays as it is
            return self._path.read_range(at, end - at)
        held = self._begin + len(self._held)
        if at < self._begin or end > held:
            rest = self._held[at - self._begin :] if self._begin <= at < held else b""
            begin = at + len(rest)
            self._held = rest + self._path.read_range(begin, min(self._block, self.length - begin))
            self._begin = at
        return self._held[at - self._begin : max(0, end - self._begin)]


@contextmanager
def open_ranges(path: Place) -> Iterator[Ranges]:
    """A regular file or an object, to read ranges from in ascending order."""
    if isinstance(path, ObjectPath):
        yield Stream(path)
        return
    descriptor = open_descriptor(path)
    try:
        yield Descriptor(descriptor)
    finally:
        os.close(descriptor)
