"""What a search brings that shows nothing at all: banners and screenshots, with the texts of their pages."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

JUNK = ("banner", "screenshot")
BANNER_SIZE, SCREENSHOT_SIZE = (128, 40), (96, 64)
SLOGANS = ("SALE", "50 % OFF", "FREE", "NEW", "CLICK", "BUY NOW", "TOP 10", "WELCOME")
WORDS = "home login search page the of and all results about your click here more news help next".split()
# {word}: the query; {n}: any number.
TITLES = {
    "banner": ("{word} shop banner {n}.jpg", "{word} - sale, free shipping", "Buy {word} online"),
    "screenshot": ("{word}: screenshot {n}.png", "{word} - search results", "{word} | forum, page {n}"),
}
font = cache(ImageFont.load_default)  # by size


def junk_picture(rng: np.random.Generator, kind: str, word: str) -> Image.Image:
    """A banner, 128 x 40, or a screenshot, 96 x 64, found by a query word."""
    return banner(rng, word) if kind == "banner" else screenshot(rng)


def banner(rng: np.random.Generator, word: str) -> Image.Image:
    """One flat colour with a slogan in large letters, and the query word on every second one."""
    colour = rng.integers(0, 256, 3)
    image = Image.new("RGB", BANNER_SIZE, tuple(colour.tolist()))
    ink = "black" if colour.mean() > 127 else "white"
    text = SLOGANS[rng.integers(len(SLOGANS))]
    if rng.random() < 0.5:
        text = f"{word.upper()} {text}"
    middle = (BANNER_SIZE[0] / 2, BANNER_SIZE[1] / 2)
    size = min(28, 165 // len(text))  # as large as fits: a letter is about two thirds as wide as high
    ImageDraw.Draw(image).text(middle, text, fill=ink, font=font(size), anchor="mm")
    return image


def screenshot(rng: np.random.Generator) -> Image.Image:
    """A window with a title bar, three buttons and lines of small text."""
    width, height = SCREENSHOT_SIZE
    paper, ink = ("white", "#333") if rng.random() < 0.7 else ("#222", "#ddd")
    image = Image.new("RGB", SCREENSHOT_SIZE, paper)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, 9), fill=tuple(rng.integers(80, 230, 3).tolist()))
    for x, colour in zip((3, 10, 17), ("#e55", "#ec4", "#5b5"), strict=True):
        draw.ellipse((x, 2, x + 5, 7), fill=colour)
    left = int(rng.integers(3, 24))
    for y in range(12, height - 6, 8):
        words = rng.choice(WORDS, size=rng.integers(1, 7))
        draw.text((left, y), " ".join(words), fill=ink, font=font(7))
    return image


def junk_page(rng: np.random.Generator, kind: str, word: str) -> dict[str, Any]:
    """Title, description and tags of its page: about the query, and about nothing that can be seen."""
    title = TITLES[kind][rng.integers(len(TITLES[kind]))]
    number = f"{rng.integers(10_000):04d}"
    return {"title": title.format(word=word, n=number), "description": "", "tags": [word]}
