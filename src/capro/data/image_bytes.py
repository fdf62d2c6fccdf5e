"""Bytes of images: from a reader's row, or of any sample of a manifest; files, tar members and objects by range."""

from __future__ import annotations

import bisect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capro.data.manifest import Manifest, Row, Source
from capro.data.readers.parquet_rows import parquet_file
from capro.errors import DataError
from capro.files import open_descriptor, open_regular, read_regular
from capro.stores import ObjectPath, Place, is_address, place

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


T = TypeVar("T")
PLACES = ("id", "path", "offset", "size", "row", "source")  # columns that say where a picture is
OPEN_FILES = 64
ROW_GROUPS = 4
REQUESTS = 32  # threads where pictures are requests to an object store: they wait more than they work


def row_bytes(row: Row, source: Source, *, most: int | None = None) -> bytes:
    """The encoded image of a row that a reader has just given, and that has no problem.

    Of a file no more than ``most`` bytes are read: whoever has a limit gives one more, and sees that it is passed.
    """
    if row.data is not None:
        return row.data
    path = os.path.join(source.root, row.path)
    return file_bytes(path, row.offset or 0, None if row.offset is None else row.size or 0, most=most)


def file_bytes(path: str, offset: int = 0, size: int | None = None, *, most: int | None = None) -> bytes:
    """The bytes of a file or an object, or of a range of it, but no more than ``most``."""
    found = place(path)
    if isinstance(found, ObjectPath):
        whole = found.size if size is None else size
        return found.read_range(offset, whole if most is None else min(whole, most))
    with open_regular(path, buffering=0) as file:
        whole = os.fstat(file.fileno()).st_size if size is None else size
        return os.pread(file.fileno(), whole if most is None else min(whole, most), offset)


def cell_bytes(cell: Any) -> bytes | None:
    """The encoded image of a table's cell: bytes, or Hugging Face's {bytes, path}; its path is not followed."""
    found = cell.get("bytes") if isinstance(cell, dict) else cell
    return found if isinstance(found, bytes) else None


def hub_bytes(cell: Any) -> bytes | None:
    """The encoded image of a hub data set's cell, whose path is a file that the datasets package has fetched."""
    found = cell_bytes(cell)
    if found is None and isinstance(cell, dict) and isinstance(cell.get("path"), str):
        try:
            return read_regular(cell["path"])
        except (OSError, ValueError):
            return None
    return found


class ImageStore:
    """Reads images in place: a file, a range of a tar, a row of a Parquet file or hub data set.

    Safe to use from threads.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._sources = manifest.sources
        samples = manifest.table.filter(pc.equal(manifest.table["status"], "ok"))
        # Arrow's own form: a million rows as Python objects would take half a gigabyte
        self._columns = [samples[name].combine_chunks() for name in PLACES]
        self._lock = threading.Lock()
        self._files = _Recent[int](OPEN_FILES, os.close)
        self._groups = _Recent[Any](ROW_GROUPS)
        self._tables: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def threads(self) -> int | None:
        """How many may read at once with gain; None: as many as there are cores, and a few more."""
        return REQUESTS if any(is_address(source.root) for source in self._sources) else None

    def read(self, position: int) -> bytes:
        """The bytes of one sample's image, by its position in ``manifest.samples``."""
        identity, path, offset, size, row, number = (column[position].as_py() for column in self._columns)
        source = self._sources[number]
        try:
            if source.kind == "files":
                return row_bytes(Row(identity, path), source)
            if source.kind == "tars" and is_address(source.root):  # no lock: a request takes its time
                return row_bytes(Row(identity, path, offset=int(offset), size=int(size)), source)
            with self._lock:
                if source.kind == "tars":
                    file = os.path.join(source.root, path)
                    descriptor = self._files.get(file, lambda: open_descriptor(file))
                    return os.pread(descriptor, int(size), int(offset))
                read = self._parquet if source.kind == "parquet" else self._hub
                return read(source, path, int(row)) or b""
        except OSError as error:
            raise DataError(
                f"{source.root}: the image of sample {identity} cannot be read: {error.strerror}",
                hint="put the data back, or run `capro scan` again",
            ) from None

    def _parquet(self, source: Source, name: str, row: int) -> bytes | None:
        file = os.path.join(source.root, name)
        if file not in self._tables:
            table = parquet_file(place(file))
            groups = (table.metadata.row_group(at).num_rows for at in range(table.num_row_groups))
            self._tables[file] = table, [*accumulate(groups, initial=0)]
        table, begins = self._tables[file]
        group = bisect.bisect_right(begins, row) - 1
        cells = self._groups.get((file, group), lambda: _image_cells(table, group, source.image_column))
        found: bytes | None = cells[row - begins[group]].as_py()
        return found

    def _hub(self, source: Source, split: str, row: int) -> bytes | None:
        from capro.data.readers.hub import load_hub

        if source.root not in self._tables:
            self._tables[source.root] = load_hub(source.root)
        return hub_bytes(self._tables[source.root][split][row][source.image_column])


def _image_cells(table: pq.ParquetFile, group: int, column: str | None) -> Any:
    """The image column of a row group."""
    cells = table.read_row_group(group, columns=[column]).column(column).combine_chunks()
    return cells.field("bytes") if pa.types.is_struct(cells.type) else cells


class _Recent(OrderedDict[Hashable, T]):
    """The values that were asked for last, at most so many."""

    def __init__(self, most: int, close: Callable[[T], None] = lambda _: None) -> None:
        super().__init__()
        self._most, self._close = most, close

    def get(self, key: Hashable, make: Callable[[], T]) -> T:  # type: ignore[override]
        """The value of a key, made if it is not there; the one that waited longest goes."""
        value = self.pop(key) if key in self else make()
        self[key] = value
        if len(self) > self._most:
            self._close(self.popitem(last=False)[1])
        return value

    def __del__(self) -> None:
        for value in self.values():
            self._close(value)
