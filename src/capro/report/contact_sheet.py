"""A contact sheet: rows of pictures with a name before each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

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
