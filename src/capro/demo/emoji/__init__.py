"""The embedded emoji: pictures in three designs, names and keywords of CLDR.

`scripts/make_emoji.py` made the files, README.md beside them names their authors. Pictures are
decoded once and kept: 44 emoji x 3 designs x 64 x 64 x 4 bytes are 2 MB.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

from PIL import Image

DESIGNS = ("noto", "twemoji", "fluent")


class Emoji(NamedTuple):
    """One emoji's English name and keywords in CLDR."""

    name: str
    keywords: tuple[str, ...]


@cache
def emoji_table() -> dict[str, Emoji]:
    """Name and keywords by code, the code points in hexadecimal.

    >>> emoji_table()["1f5b1-fe0f"]
    Emoji(name='computer mouse', keywords=('computer', 'mouse'))
    """
    text = resources.files(__package__).joinpath("emoji.json").read_text(encoding="utf-8")
    rows = json.loads(text)
    return {code: Emoji(row["name"], tuple(row["keywords"])) for code, row in rows.items()}


@cache
def picture(design: str, code: str) -> Image.Image:
    """One emoji as 64 x 64 RGBA. Shared: copy before changing it.

    >>> picture("noto", "1f401").size
    (64, 64)
    """
    with resources.files(__package__).joinpath(design, f"{code}.png").open("rb") as file:
        return Image.open(file).convert("RGBA")
