"""Encoded images: of a reader's row, or of any sample of a manifest."""

from __future__ import annotations

import bisect
import os
import threading
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capro.data.manifest import Manifest, Row, Source
from capro.data.readers.parquet_rows import parquet_file
from capro.errors import DataError
from capro.files import open_regular, read_regular
from capro.stores import ObjectPath, is_address, place

PLACES = ("id", "path", "offset", "size", "row", "source")  # columns that say where a picture is
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
    """Reads images in place: a file, a range of a tar, a row of a Parquet file or hub dataset.

    Safe to use from threads.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._sources = manifest.sources
        samples = manifest.table.filter(pc.equal(manifest.table["status"], "ok"))
        # Arrow's own form: a million rows as Python objects would take half a gigabyte
        self._columns = [samples[name].combine_chunks() for name in PLACES]
        self._lock = threading.Lock()  # for the three below
        self._table = cache(_open_table)
        self._cells = lru_cache(ROW_GROUPS)(_image_cells)
        self._hub = cache(_load_hub)

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
            if source.kind in ("files", "tars"):
                return row_bytes(Row(identity, path, offset=offset, size=size), source)
            with self._lock:
                if source.kind == "hub":
                    return hub_bytes(self._hub(source.root)[path][row][source.image_column]) or b""
                table, begins = self._table(os.path.join(source.root, path))
                group = bisect.bisect_right(begins, row) - 1
                cells = self._cells(table, group, source.image_column)
                return cells[row - begins[group]].as_py() or b""
        except OSError as error:
            raise DataError(
                f"{source.root}: the image of sample {identity} cannot be read: {error.strerror}",
                hint="put the data back, or run `capro scan` again",
            ) from None


def _open_table(path: str) -> tuple[pq.ParquetFile, list[int]]:
    """A Parquet file, and the first row of each of its row groups."""
    table = parquet_file(place(path))
    groups = (table.metadata.row_group(at).num_rows for at in range(table.num_row_groups))
    return table, [*accumulate(groups, initial=0)]


def _image_cells(table: pq.ParquetFile, group: int, column: str | None) -> Any:
    """The image column of a row group."""
    cells = table.read_row_group(group, columns=[column]).column(column).combine_chunks()
    return cells.field("bytes") if pa.types.is_struct(cells.type) else cells


def _load_hub(name: str) -> Any:
    from capro.data.readers.hub import load_hub

    return load_hub(name)
