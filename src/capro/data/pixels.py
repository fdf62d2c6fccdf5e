"""Images of a manifest by position: their encoded bytes, and their pixels from a memory map or decoded anew.

Both ways give the same pixels. The memory map is one flat file of RGB bytes with an index of offsets.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from capro.config import ScanSettings
from capro.data.images import ImageProblem, decode, decode_bytes
from capro.data.manifest import Manifest, Row, Source, manifest_of
from capro.data.readers.hub import hub_bytes, load_hub
from capro.data.readers.table_files import parquet_file
from capro.errors import DataError
from capro.files import open_regular
from capro.pipeline.artefacts import PIXEL_INDEX, PIXELS, atomic_path, read_array, write_array
from capro.pipeline.run import Run
from capro.stores import ObjectPath, any_path, is_address

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
    location = any_path(path)
    if isinstance(location, ObjectPath):
        whole = location.size if size is None else size
        return location.read_range(offset, whole if most is None else min(whole, most))
    with open_regular(path, buffering=0) as file:
        whole = os.fstat(file.fileno()).st_size if size is None else size
        return os.pread(file.fileno(), whole if most is None else min(whole, most), offset)


class StoredImages:
    """Reads images in place: a file, a range of a tar, a row of a Parquet file or hub dataset.

    Safe to use from threads.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._lock = threading.Lock()  # for the three below
        self._table = cache(_open_table)
        self._cells = lru_cache(ROW_GROUPS)(_image_cells)
        self._hub = cache(load_hub)

    def read(self, row: Row, *, most: int | None = None) -> bytes:
        """The encoded image of a row; of a file no more than ``most`` bytes, see `row_bytes`."""
        source = self._sources[row.source]
        if row.data is not None or row.row is None:
            return row_bytes(row, source, most=most)
        with self._lock:
            if source.kind == "hub":
                return hub_bytes(self._hub(source.root)[row.path][row.row][source.image_column]) or b""
            table, begins = self._table(os.path.join(source.root, row.path))
            group = bisect.bisect_right(begins, row.row) - 1
            cells = self._cells(table, group, source.image_column)
            return cells[row.row - begins[group]].as_py() or b""


class ImageStore:
    """The encoded images of a manifest's samples; safe to use from threads."""

    def __init__(self, manifest: Manifest) -> None:
        self._sources = manifest.sources
        self._images = StoredImages(manifest.sources)
        samples = manifest.table.filter(pc.equal(manifest.table["status"], "ok"))
        # Arrow's own form: a million rows as Python objects would take half a gigabyte
        self._columns = [samples[name].combine_chunks() for name in PLACES]

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def threads(self) -> int | None:
        """How many may read at once with gain; None: as many as there are cores, and a few more."""
        return REQUESTS if any(is_address(source.root) for source in self._sources) else None

    def read(self, position: int) -> bytes:
        """The bytes of one sample's image, by its position in ``manifest.samples``."""
        place = zip(PLACES, self._columns, strict=True)
        row = Row(**{name: column[position].as_py() for name, column in place})
        try:
            return self._images.read(row)
        except OSError as error:
            root = self._sources[row.source].root
            raise DataError(
                f"{root}: the image of sample {row.id} cannot be read: {error.strerror}",
                hint="put the data back, or run `capro scan` again",
            ) from None


def _open_table(path: str) -> tuple[pq.ParquetFile, list[int]]:
    """A Parquet file, and the first row of each of its row groups."""
    table = parquet_file(any_path(path))
    groups = (table.metadata.row_group(at).num_rows for at in range(table.num_row_groups))
    return table, [*accumulate(groups, initial=0)]


def _image_cells(table: pq.ParquetFile, group: int, column: str | None) -> Any:
    """The image column of a row group."""
    cells = table.read_row_group(group, columns=[column]).column(column).combine_chunks()
    return cells.field("bytes") if pa.types.is_struct(cells.type) else cells


T = TypeVar("T")
R = TypeVar("R")
AHEAD = 256  # images that are decoded at once
WRITTEN = 1 << 20  # bytes: each write gives up Python's lock, and may wait for threads that decode


class Pixels:
    """RGB images by position in ``manifest.samples``.

    Args:
        manifest: What there is.
        limits: The same that ``scan`` used, so that what it accepted decodes here.
        min_side: Large JPEGs are decoded in draft mode to no less than this.
        cache: Folder of a cache made by ``build``; None decodes each time.
    """

    def __init__(
        self, manifest: Manifest, limits: ScanSettings, *, min_side: int, cache: Path | None = None
    ) -> None:
        self.ids: list[str] = manifest.samples["id"].tolist()
        self._store = ImageStore(manifest)
        self._limits = limits
        self._min_side = min_side
        self._flat: NDArray[np.uint8] | None = None
        if cache is not None:
            self._flat = read_array(cache / PIXELS.file)
            self._index = np.array(read_array(cache / PIXEL_INDEX.file))

    @property
    def channels(self) -> int:
        """Bytes a pixel of ``pixels``."""
        return 4 if self._flat is None else 3

    def __len__(self) -> int:
        return len(self._store)

    def image(self, position: int) -> Image.Image:
        """One image, RGB."""
        if self._flat is None:
            return self._decoded(decode, position)[0]
        return Image.fromarray(self.pixels(position))

    def pixels(self, position: int) -> NDArray[np.uint8]:
        """One image's bytes, (h, w, 3), or (h, w, 4) with a filler; read only."""
        if self._flat is None:
            return self._decoded(decode_bytes, position)
        begin, height, width = (int(value) for value in self._index[position])
        return self._flat[begin : begin + height * width * 3].reshape(height, width, 3)

    def _decoded(self, way: Callable[..., T], position: int) -> T:
        try:
            return way(self._store.read(position), self._limits, min_side=self._min_side)
        except ImageProblem as problem:
            raise DataError(
                f"sample {self.ids[position]}: its image has changed since the scan ({problem.reason})",
                hint="run `capro scan` again",
            ) from None

    def build(
        self, folder: Path, *, needed: int | None = None, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Decode every image once into a cache in ``folder``; a kill leaves no cache behind.

        Args:
            folder: Of the cache.
            needed: The bytes that it takes at most, named where the disk is full.
            progress: Called with the number of images done in each step.
        """
        index = np.zeros((len(self), 3), dtype=np.int64)
        offset = 0
        with (
            atomic_path(folder / PIXELS.file, needed=needed) as target,
            target.open("wb", buffering=WRITTEN) as file,
            ThreadPoolExecutor(self._store.threads) as pool,
        ):
            _write_header(file, 0)
            images = in_order(
                pool, lambda position: np.asarray(self.image(position)), range(len(self)), AHEAD
            )
            for position, pixels in enumerate(images):
                index[position] = offset, *pixels.shape[:2]
                file.write(pixels.tobytes())
                offset += pixels.size
                progress(1)
            file.seek(0)
            _write_header(file, offset)
        write_array(folder / PIXEL_INDEX.file, index)


def in_order(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Results in the order of the items; so many are on their way at once, since a pool would take in a million."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def pixels_of(run: Run, side: int, *, cached: bool = True) -> Pixels:
    """Decoded images of a run for a network input, or a picture, of this side; cached ones if there are."""
    cached = cached and run.find(PIXEL_INDEX) is not None and run.find(PIXELS) is not None
    # twice the side: a random crop of a quarter of the area still has every pixel
    return Pixels(
        manifest_of(run), run.settings.scan, min_side=2 * side, cache=run.folder("pixels") if cached else None
    )


def _write_header(file: BinaryIO, size: int) -> None:
    """The header of an .npy file of shape (size,); numpy makes it as long for any size."""
    shape = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, shape)


def decoded_bytes(manifest: Manifest) -> int:
    """What a cache of all samples would take at most."""
    samples = manifest.samples
    return int((samples["width"].astype("int64") * samples["height"] * 3).sum())
