"""Decoded images of a manifest, by position: from a memory map where they fit, else decoded anew.

Both ways give the same pixels. The cache is one flat file of RGB bytes with an index of places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capro.config import ScanSettings
from capro.data.image_bytes import ImageStore
from capro.data.images import ImageProblem, decode, decode_bytes
from capro.data.manifest import Manifest, manifest_of
from capro.errors import DataError
from capro.pipeline.artefacts import PIXEL_INDEX, PIXELS, atomic_path, read_array, write_array
from capro.pipeline.run import Run

T = TypeVar("T")
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
        return self._decode(position) if self._flat is None else Image.fromarray(self.pixels(position))

    def pixels(self, position: int) -> NDArray[np.uint8]:
        """One image's bytes, (h, w, 3), or (h, w, 4) with a filler; read only."""
        if self._flat is None:
            return self._decoded(decode_bytes, position)
        begin, height, width = (int(value) for value in self._index[position])
        return self._flat[begin : begin + height * width * 3].reshape(height, width, 3)

    def _decode(self, position: int) -> Image.Image:
        return self._decoded(decode, position)[0]

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
        place = 0
        with (
            atomic_path(folder / PIXELS.file, needed=needed) as target,
            target.open("wb", buffering=WRITTEN) as file,
            ThreadPoolExecutor(self._store.threads) as pool,
        ):
            _write_header(file, 0)
            for position, pixels in enumerate(self._in_order(pool)):
                index[position] = place, *pixels.shape[:2]
                file.write(pixels.tobytes())
                place += pixels.size
                progress(1)
            file.seek(0)
            _write_header(file, place)
        write_array(folder / PIXEL_INDEX.file, index)

    def _in_order(self, pool: ThreadPoolExecutor) -> Iterator[NDArray[np.uint8]]:
        """Every image's bytes; few are on their way at once, since a pool would take in a million positions."""
        for begin in range(0, len(self), AHEAD):
            positions = range(begin, min(begin + AHEAD, len(self)))
            yield from pool.map(lambda position: np.asarray(self._decode(position)), positions)


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
