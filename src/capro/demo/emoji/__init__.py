"""The embedded emoji: pictures in three designs, composed into scenes, with texts in the manner of web pages."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

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


PICTURE_SIDE = 64

# r, g, b -> y (grey), u, v (colour): a hue is an angle in the u, v plane.
_TO_YUV = np.array([[0.299, 0.587, 0.114], [-0.147, -0.289, 0.436], [0.615, -0.515, -0.100]])
_TO_RGB = np.linalg.inv(_TO_YUV)


def scene(rng: np.random.Generator, codes: list[str], distractors: list[str]) -> Image.Image:
    """A picture of `codes` in front of small `distractors`, 64 x 64 RGB.

    One emoji takes 40 to 80 % of the width anywhere in the frame; two or three take 34 to 50 %
    each, in quarters of their own.
    """
    image = Image.fromarray(background(rng))
    for code in distractors:
        stamp(rng, image, code, width=rng.uniform(0.15, 0.25), centre=rng.uniform(0.05, 0.95, 2))
    if len(codes) == 1:
        width = rng.uniform(0.4, 0.8)
        stamp(rng, image, codes[0], width=width, centre=free_centre(rng, width))
        return image
    quarters = rng.permutation(4)
    for quarter, code in zip(quarters, codes, strict=False):
        middle = np.array([0.27 + 0.46 * (quarter % 2), 0.27 + 0.46 * (quarter // 2)])
        centre = middle + rng.uniform(-0.05, 0.05, 2)
        stamp(rng, image, code, width=rng.uniform(0.34, 0.5), centre=centre)
    return image


def free_centre(rng: np.random.Generator, width: float) -> NDArray[np.float64]:
    """Where something of this width may sit: at most a tenth of it leaves the frame."""
    margin = 0.4 * width
    return rng.uniform(margin, 1 - margin, 2)


def stamp(
    rng: np.random.Generator, image: Image.Image, code: str, *, width: float, centre: NDArray[np.float64]
) -> None:
    """Paste one emoji in a random design, turned, mirrored and recoloured a little."""
    emoji = picture(DESIGNS[rng.integers(len(DESIGNS))], code)
    pixels = max(1, round(width * PICTURE_SIDE))
    emoji = emoji.resize((pixels, pixels), Image.Resampling.BICUBIC)
    if rng.random() < 0.5:
        emoji = emoji.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    emoji = recolour(emoji, hue=rng.uniform(-0.35, 0.35), brightness=rng.uniform(0.7, 1.2))
    emoji = emoji.rotate(rng.uniform(-30, 30), Image.Resampling.BICUBIC, expand=True)
    corner = (
        round(centre[0] * PICTURE_SIDE - emoji.width / 2),
        round(centre[1] * PICTURE_SIDE - emoji.height / 2),
    )
    image.paste(emoji, corner, emoji)


def recolour(emoji: Image.Image, *, hue: float, brightness: float) -> Image.Image:
    """Turn the colours by `hue` radians around grey, then scale them; alpha stays."""
    cos, sin = np.cos(hue), np.sin(hue)
    turn = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])  # in y, u, v: the grey axis is fixed
    matrix = np.pad(_TO_RGB @ turn @ _TO_YUV, ((0, 0), (0, 1)))  # (3, 3) -> (3, 4)
    rgb = emoji.convert("RGB").convert("RGB", tuple(matrix.ravel()))
    rgb = ImageEnhance.Brightness(rgb).enhance(brightness)
    rgb.putalpha(emoji.getchannel("A"))
    return rgb


def background(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Plain, gradient, stripes or noise, (64, 64, 3)."""
    first, second = rng.uniform(40, 255, (2, 3))
    x, y = np.meshgrid(np.linspace(0, 1, PICTURE_SIDE), np.linspace(0, 1, PICTURE_SIDE))
    angle = rng.uniform(0, 2 * np.pi)
    along = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)  # (64, 64), -0.7 .. 0.7
    kind = rng.integers(4)
    if kind == 0:
        share = np.zeros_like(along)
    elif kind == 1:
        share = along / 1.42 + 0.5
    elif kind == 2:
        share = 0.5 * (np.sin(along * rng.uniform(15, 50)) > 0)
    else:
        cells = rng.uniform(
            0, 0.7, (PICTURE_SIDE // 4, PICTURE_SIDE // 4)
        )  # 4 px grains compress and confuse well
        share = np.kron(cells, np.ones((4, 4)))
    mixed: NDArray[np.float64] = first + share[..., None] * (second - first)  # (64, 64, 3)
    return mixed.astype(np.uint8)


# {name}, {a}, {b}: the emoji shown and two of its keywords; {word}: the query; {n}: any number.
TITLES = (
    "{name} | {a}, {b} - image {n}.jpg",
    "{word}: {name}",
    "{name} - free {word} pictures",
    "IMG_{n}.JPG {name}",
    "<b>{name}</b> &amp; {a} | {word}",
    "{word} ({name}, {a})",
    "{word}",
)
DESCRIPTIONS = (
    "A picture of {word}: {name}, {a} and {b}.",
    "<p>Everything about {a}, {b} and {word}.</p>",
    "See https://pictures.example/{n}.html for more of {name} ({a}).",
    "{name}<br/>{a} / {b} / {word}",
    "Our {word} page shows a {name}.\nKeywords:\t{a}, {b}",
    "",
)


def page(rng: np.random.Generator, words: list[str], codes: list[str]) -> dict[str, Any]:
    """Title, description and tags of a page found by `words` that shows the emoji `codes`."""
    emoji = [emoji_table()[code] for code in codes]
    main = emoji[0]
    # Keywords that only repeat the query add nothing; every emoji of the demo has others or a name
    informative = [word for word in main.keywords if word not in words] or [main.name]
    a, b = (informative[i] for i in rng.integers(len(informative), size=2))
    fields = {"name": main.name, "a": a, "b": b, "n": f"{rng.integers(10_000):04d}"}
    title = TITLES[rng.integers(len(TITLES))].format(word=words[0], **fields)
    description = DESCRIPTIONS[rng.integers(len(DESCRIPTIONS))].format(word=words[0], **fields)
    for word, other in zip(words[1:], emoji[1:], strict=False):
        description += f" With {word} ({other.name})."
    tags = [*words, *(one for e in emoji for one in e.keywords if rng.random() < 0.5)]
    if rng.random() < 0.2:
        tags = ["".join(main.name.split()), *tags]  # glued: computermouse
    return {"title": title, "description": description.strip(), "tags": tags[:6]}
