"""Builders of good and bad images for the tests: bytes only, nothing on disk."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def picture(width: int = 12, height: int = 8, *, seed: int = 0, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def png(seed: int = 0) -> bytes:
    return encode(picture(seed=seed))


def jpeg(width: int = 64, height: int = 48, seed: int = 0) -> bytes:
    return encode(picture(width, height, seed=seed), "JPEG")


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has almost no data: what a decompression bomb looks like."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


BAD_IMAGES: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "empty"),
    "text called jpg": (b"<html>404 not found</html>", "not-an-image"),
    "random bytes": (bytes(range(256)), "not-an-image"),
    "jpeg cut in half": (jpeg()[: len(jpeg()) // 2], "truncated"),
    "jpeg of three bytes": (jpeg()[:3], "truncated"),
    "png cut in half": (png()[: len(png()) // 2], "truncated"),
    "png without data": (png()[:40], "truncated"),
    "gif cut": (encode(picture(), "GIF")[:20], "truncated"),
    "webp cut": (encode(picture(64, 64), "WEBP")[:30], "truncated"),
    "bomb": (png_header(60_000, 60_000), "too-large"),
    "just above the cap": (png_header(10_000, 5_001), "too-large"),
    "100000 x 1": (png_header(100_000, 1), "too-thin"),
    "1 x 100000": (png_header(1, 100_000), "too-thin"),
    "pdf": (b"%PDF-1.4 ...", "format"),
    "svg": (b'<?xml version="1.0"?><svg xmlns="x"><script/></svg>', "format"),
    "avif": (b"\0\0\0\x20ftypavif" + bytes(64), "format"),
    "portable pixmap": (encode(picture(), "PPM"), "format"),
    "icon": (encode(picture(16, 16), "ICO"), "format"),
}
