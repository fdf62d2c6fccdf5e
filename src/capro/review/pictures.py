"""Thumbnails: a picture from where it is, made small, as WebP; kept on the disk once made.

A picture is asked for by its row. No text of a request becomes part of a path.
"""

from __future__ import annotations

import io
import threading
from pathlib import Path

from PIL import Image, features

from capro.config import ScanSettings
from capro.data.image_bytes import ImageStore
from capro.data.images import ImageProblem, decode
from capro.data.manifest import Manifest
from capro.errors import DataError
from capro.run.artefacts import atomic_path

SIDES = {"small": 256, "large": 1024}  # longest side, px
QUALITY = 80
AT_ONCE = 4  # pictures decoded at the same time: a large one takes some ten megabytes
KIND = "webp" if features.check("webp") else "jpeg"


class Pictures:
    """Thumbnails of a manifest's samples.

    Args:
        manifest: Where the pictures are.
        limits: The same that ``scan`` used.
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
            made = self._make(position, side)
        if made is not None:
            with atomic_path(file, cache=True) as temporary:
                temporary.write_bytes(made)
        return made

    def _make(self, position: int, side: int) -> bytes | None:
        try:
            image, _ = decode(self._store.read(position), self._limits, min_side=side)
        except (DataError, ImageProblem):
            return None
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, KIND.upper(), quality=QUALITY)
        return buffer.getvalue()
