"""Thumbnails as sprites: a few sheets of many small pictures, each a ``data:`` URI.

Pictures that are looked at closely are large, those that only the map shows are small. A sheet is
decoded by the page when a picture on it is first needed.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageOps, features

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

    @property
    def unreadable(self) -> int:
        """How many pictures are gone."""
        return sum(place is None for place in self.places)


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
