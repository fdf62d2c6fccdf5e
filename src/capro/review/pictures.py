"""Thumbnails as WebP, kept on disk once made; and which pictures are most similar to one."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from capro.config import ScanSettings
from capro.data.images import ImageProblem, decode
from capro.data.manifest import Manifest
from capro.data.pixels import ImageStore
from capro.errors import DataError
from capro.graph.ondisk import release
from capro.pipeline.artefacts import atomic_path

SIDES = {"small": 256, "large": 1024}  # longest side, px
QUALITY = 80
AT_ONCE = 4  # pictures decoded at the same time: a large one takes some ten megabytes
KIND = "webp" if features.check("webp") else "jpeg"


class Pictures:
    """Thumbnails of a manifest's samples.

    Args:
        manifest: Where the pictures are.
        limits: Those that ``scan`` used.
        folder: Where thumbnails are kept; its name must change with the manifest.
    """

    def __init__(self, manifest: Manifest, limits: ScanSettings, folder: Path) -> None:
        self._store = ImageStore(manifest)
        self._limits = limits
        self._folder = folder
        self._decoding = threading.BoundedSemaphore(AT_ONCE)

    def read(self, position: int, size: str) -> bytes | None:
        """The bytes of a thumbnail; None where the picture cannot be read any more."""
        side = SIDES[size]
        file = self._folder / f"{side}" / f"{position // 1000}" / f"{position}.{KIND}"
        try:
            return file.read_bytes()
        except FileNotFoundError:
            pass
        with self._decoding:
            thumbnail = self._make(position, side)
        if thumbnail is not None:
            with atomic_path(file, cache=True) as temporary:
                temporary.write_bytes(thumbnail)
        return thumbnail

    def _make(self, position: int, side: int) -> bytes | None:
        try:
            image, _ = decode(self._store.read(position), self._limits, min_side=side)
        except (DataError, ImageProblem):
            return None
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, KIND.upper(), quality=QUALITY)
        return buffer.getvalue()


BLOCK = 8192  # rows in memory at once


def similarity(v: NDArray[np.floating[Any]], row: int) -> NDArray[np.float32]:
    """Cosine of every row with one, (n,); the row itself has 1.

    >>> similarity(np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), 0).round(2).tolist()
    [1.0, 0.7099999785423279, 0.0]
    """
    query = np.asarray(v[row], dtype=np.float32)
    query = query / max(float(np.linalg.norm(query)), 1e-12)
    cosines = np.empty(len(v), dtype=np.float32)
    for begin in range(0, len(v), BLOCK):
        block = np.asarray(v[begin : begin + BLOCK], dtype=np.float32)
        norms = np.maximum(np.linalg.norm(block, axis=1), 1e-12)
        cosines[begin : begin + BLOCK] = block @ query / norms
        release(v)
    return cosines
