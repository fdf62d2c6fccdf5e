"""Mutated images of all formats through both decoders: pixels, the same from both, or a reason."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from capro.config import ScanSettings
from capro.data.images import REASONS, ImageProblem, decode, decode_bytes
from soak.attack import Attack, Broken, Outcome, Strike
from soak.mutations import flipped
from tests.data.bombs import SUSPICIOUS, jpeg_of_scans
from tests.data.corpus import BAD_IMAGES, encode, jpeg, picture

LIMITS = ScanSettings(max_seconds=5, max_pixels=4_000_000)
EACH = 10  # images a case


def seeds() -> list[bytes]:
    """Good images of every kind, and the bad ones that the tests know."""
    colour, grey = picture(40, 30), picture(40, 30, mode="L")
    found = [encode(colour, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    found += [
        encode(colour, "TIFF", compression=name) for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits")
    ]
    found += [encode(colour, "JPEG", progressive=True), jpeg_of_scans(12, 64, 3), jpeg(200, 100)]
    found += [encode(colour.convert("P"), "PNG"), encode(grey.convert("I;16"), "PNG"), encode(grey, "JPEG")]
    found += [encode(colour.convert("CMYK"), "JPEG"), encode(colour.convert("RGBA"), "WEBP", lossless=True)]
    found += [encode(colour, "GIF", save_all=True, append_images=[grey.convert("RGB")])]
    found += [data for data, _ in BAD_IMAGES.values() if data]
    return found + [data for name, data in SUSPICIOUS.items() if "megapixels" not in name]


def _ready(_: Path) -> Strike:
    made = seeds()

    def strike(_number: int, rng: random.Random, empty: Path) -> Outcome:
        for _ in range(EACH):
            data = flipped(rng.choice(made), rng)
            (empty / "image").write_bytes(data)
            check(data)
        return Outcome(inputs=EACH)

    return strike


def check(data: bytes) -> None:
    """Decode in both ways."""
    try:
        image, _ = decode(data, LIMITS)
    except ImageProblem as problem:
        if problem.reason not in REASONS:
            raise Broken(f"no such reason: {problem.reason}") from None
        image = None
    try:
        quick = decode_bytes(data, LIMITS)
    except ImageProblem:
        quick = None
    if (image is None) != (quick is None):
        raise Broken("one way decodes what the other refuses")
    if image is not None and quick is not None and not np.array_equal(np.asarray(image), quick[..., :3]):
        raise Broken("two ways of decoding give other pixels")


ATTACK = Attack("images", goal=40_000, share=2, ready=_ready, batch=100)
