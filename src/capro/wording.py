"""Counts, sizes, shares and lists in sentences, and web text that is safe to print. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CLIP = 280  # characters of a web text in the page
# control characters, and those that turn the direction of the text around them
_HIDDEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"  # lone surrogates, which no file can hold; tags, which nobody sees
)


def plain(value: Any, clip: int = CLIP) -> str:
    """A web text on one line, without hidden characters, clipped.

    >>> plain("a\\n b\\u202ec"), plain(None), plain("x" * 9, clip=4)
    ('a bc', '', 'xxx…')
    """
    if not isinstance(value, str):
        return ""
    text = " ".join(_HIDDEN.sub("", value).split())
    return text if len(text) <= clip else text[: clip - 1] + "…"


def many(count: int, one: str, more: str | None = None) -> str:
    """A count with its noun.

    >>> many(1, "image"), many(2400, "image"), many(3, "class", "classes")
    ('1 image', '2,400 images', '3 classes')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def byte_size(count: int) -> str:
    """A number of bytes in a unit that fits.

    >>> byte_size(80), byte_size(4_300_000), byte_size(5 * 2**30)
    ('80 bytes', '4.1 MB', '5.0 GB')
    """
    for unit, size in (("TB", 2**40), ("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return many(count, "byte")


def share(part: float, whole: float) -> str:
    """A share in per cent, never "0 %" of something that is there.

    >>> share(1, 3), share(1, 4000), share(0, 0)
    ('33\\xa0%', '0.03\\xa0%', '0\\xa0%')
    """
    value = 100 * part / whole if whole else 0.0
    if not value or value >= 9.5:
        return f"{value:.0f}\N{NO-BREAK SPACE}%"
    return f"{value:.1f}\N{NO-BREAK SPACE}%" if value >= 0.95 else f"{value:.1g}\N{NO-BREAK SPACE}%"


def signed(share: float) -> str:
    """A difference of shares in points.

    >>> signed(-0.125), signed(0.02)
    ('\N{MINUS SIGN}12.5', '+2.0')
    """
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(["a", "b"], "or")
    ('a', 'a, b and c', 'a or b')
    """
    return f" {last} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first of many names, and how many more there are.

    >>> some(["a", "b", "c"]), some(["a", "b", "c"], 2)
    ('a, b, c', 'a, b and 1 more')
    """
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
