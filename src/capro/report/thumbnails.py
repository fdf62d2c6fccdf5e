"""Pictures for people: thumbnails as sprites, a contact sheet, a map in two dimensions."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps, features

from capro.data.pixels import Pixels
from capro.errors import DataError

LARGE, SMALL = 96, 48  # px; no larger than the pictures themselves
SIDE = 768  # px of a sheet: phones decode it at once
QUALITY = 78


@dataclass(frozen=True)
class Sprites:
    """Sheets, and where each picture is on them.

    Attributes:
        sheets: ``data:`` URIs.
        tiles: side of a picture on each sheet, px.
        places: (sheet, number on the sheet) of each picture; None: it could not be read.
    """

    sheets: list[str]
    tiles: list[int]
    places: list[tuple[int, int] | None]


def sprites(
    pixels: Pixels,
    positions: Sequence[int],
    large: Sequence[bool],
    *,
    side: int = LARGE,
    step: Callable[[int], None] = lambda _: None,
) -> Sprites:
    """Draw pictures onto sheets, in order, so that neighbours in use are neighbours on a sheet.

    Args:
        pixels: where pictures come from.
        positions: which, by manifest position.
        large: whether a picture is looked at closely.
        side: of a large picture; a small one is at most half of ``LARGE``.
        step: called after each picture.
    """
    sheets: list[str] = []
    tiles: list[int] = []
    places: list[tuple[int, int] | None] = [None] * len(positions)
    for wanted, tile in ((True, side), (False, min(side, SMALL))):
        across = SIDE // tile
        numbers = [number for number, close in enumerate(large) if bool(close) == wanted]
        for begin in range(0, len(numbers), across * across):
            block = numbers[begin : begin + across * across]
            lines = -(-len(block) // across)
            sheet = Image.new("RGB", (across * tile, lines * tile), "#888")
            for place, number in enumerate(block):
                step(1)
                try:
                    image = pixels.image(int(positions[number]))
                except DataError:
                    continue
                square = ImageOps.fit(image, (tile, tile), Image.Resampling.LANCZOS)
                sheet.paste(square, (place % across * tile, place // across * tile))
                places[number] = (len(sheets), place)
            sheets.append(data_uri(sheet))
            tiles.append(tile)
    return Sprites(sheets, tiles, places)


def data_uri(image: Image.Image) -> str:
    """A picture within the page: WebP, or JPEG where Pillow was built without it.

    >>> data_uri(Image.new("RGB", (4, 4)))[:11]
    'data:image/'
    """
    kind = "WEBP" if features.check("webp") else "JPEG"
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=QUALITY)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


NAME_WIDTH = 130
GAP = 4


def contact_sheet(rows: Mapping[str, Sequence[Image.Image]], *, tile: int = 64) -> Image.Image:
    """Draw pictures as squares, one row per name.

    >>> contact_sheet({"cat": [Image.new("RGB", (9, 5))] * 3}, tile=10).size
    (172, 14)
    """
    columns = max((len(images) for images in rows.values()), default=0)
    size = (NAME_WIDTH + columns * (tile + GAP), max(1, len(rows)) * (tile + GAP))
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=14)
    for line, (name, images) in enumerate(rows.items()):
        top = line * (tile + GAP)
        draw.text((GAP, top + tile // 2 - 8), name[:18], fill="black", font=font)
        for column, image in enumerate(images):
            square = ImageOps.fit(image.convert("RGB"), (tile, tile))
            sheet.paste(square, (NAME_WIDTH + column * (tile + GAP), top))
    return sheet


PERPLEXITY = 30.0
ANGLE, ITERATIONS = 0.8, 500  # quicker than scikit-learn's 0.5 and 1,000


def embedding_map(features: NDArray[np.floating[Any]], seed: int) -> NDArray[np.float32]:
    """Two dimensions by t-SNE, scaled to 0 ... 1, (n, 2); O(n log n), some seconds for 3,000."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    x = np.asarray(features, dtype=np.float32)
    n = len(x)
    if n < 4 or not np.ptp(x, axis=0).any():  # too few, or all the same: a circle
        angle = np.linspace(0, 2 * np.pi, max(n, 1), endpoint=False)[:n]
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) / 2 + 0.5
        return circle.astype(np.float32)
    width = min(50, n - 1, x.shape[1])
    x = PCA(width, random_state=seed % 2**32, svd_solver="randomized").fit_transform(x)
    found = TSNE(
        2, init="pca" if width >= 2 else "random", random_state=seed % 2**32,
        perplexity=min(PERPLEXITY, (n - 1) / 3), angle=ANGLE, max_iter=ITERATIONS,
    ).fit_transform(x)  # fmt: skip
    low, high = found.min(axis=0), found.max(axis=0)
    scaled: NDArray[np.float32] = ((found - low) / np.maximum(high - low, 1e-9)).astype(np.float32)
    return scaled
