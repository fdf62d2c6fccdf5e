"""Image bytes of any sample of a manifest, whatever its source; safe to use from threads."""

from __future__ import annotations

import bisect
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capro.data.manifest import Manifest, Row, Source
from capro.errors import DataError

OPEN_FILES = 64
ROW_GROUPS = 4


class ImageStore:
    """Reads images in place: a file, a range of a tar, a row of a Parquet file or hub data set."""

    def __init__(self, manifest: Manifest) -> None:
        self._sources = manifest.sources
        columns = ["id", "source", "path", "offset", "size", "row"]
        self._rows: list[tuple[Any, ...]] = list(manifest.samples[columns].itertuples(index=False, name=None))
        self._lock = threading.Lock()
        self._files: OrderedDict[str, int] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], list[Any]] = OrderedDict()
        self._tables: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, position: int) -> bytes:
        """The bytes of one sample's image, by its position in ``manifest.samples``."""
        identity, number, path, offset, size, row = self._rows[position]
        source = self._sources[number]
        try:
            if source.kind == "files":
                return _file_bytes(source, path)
            if source.kind == "tars":
                return self._range(str(Path(source.root, path)), int(offset), int(size))
            if source.kind == "parquet":
                return self._parquet(source, path, int(row))
            return self._hub(source, path, int(row))
        except OSError as error:
            raise DataError(
                f"{source.root}: image of sample {identity} is gone: {error.strerror}",
                hint="put the data back, or run `capro scan` again",
            ) from None

    def _range(self, file: str, offset: int, size: int) -> bytes:
        with self._lock:
            descriptor = self._files.pop(file, None)
            if descriptor is None:
                descriptor = os.open(file, os.O_RDONLY)
                if len(self._files) >= OPEN_FILES:
                    os.close(self._files.popitem(last=False)[1])
            self._files[file] = descriptor
            return os.pread(descriptor, size, offset)

    def _parquet(self, source: Source, name: str, row: int) -> bytes:
        file = str(Path(source.root) / name)
        with self._lock:
            table = self._tables.get(file)
            if table is None:
                table = self._tables[file] = _Groups(file)
            group, inner = table.locate(row)
            cells = self._groups.pop((file, group), None)
            if cells is None:
                cells = table.read(group, source.image_column)
                if len(self._groups) >= ROW_GROUPS:
                    self._groups.popitem(last=False)
            self._groups[file, group] = cells
            return bytes(cells[inner].as_py() or b"")

    def _hub(self, source: Source, split: str, row: int) -> bytes:
        from capro.data.readers.hub import image_bytes, load_hub

        with self._lock:
            if source.root not in self._tables:
                self._tables[source.root] = load_hub(source.root)
            cell = self._tables[source.root][split][row][source.image_column]
        return image_bytes(cell) or b""


class _Groups:
    """Row groups of a Parquet file."""

    def __init__(self, path: str) -> None:
        self._file = pq.ParquetFile(path)
        meta = self._file.metadata
        self._ends = [0]
        for group in range(meta.num_row_groups):
            self._ends.append(self._ends[-1] + meta.row_group(group).num_rows)

    def locate(self, row: int) -> tuple[int, int]:
        """Row group of a row, and its place in there."""
        group = bisect.bisect_right(self._ends, row) - 1
        return group, row - self._ends[group]

    def read(self, group: int, column: str | None) -> Any:
        """The image column of a row group."""
        cells = self._file.read_row_group(group, columns=[column]).column(column).combine_chunks()
        return cells.field("bytes") if pa.types.is_struct(cells.type) else cells


def row_bytes(row: Row, source: Source) -> bytes:
    """The encoded image of a row that a reader has just given, and that has no problem."""
    if row.data is not None:
        return row.data
    if row.offset is None:
        return _file_bytes(source, row.path)
    with open(os.path.join(source.root, row.path), "rb") as file:
        return os.pread(file.fileno(), row.size or 0, row.offset)


def _file_bytes(source: Source, path: str) -> bytes:
    with open(os.path.join(source.root, path), "rb", buffering=0) as file:
        return file.read()
