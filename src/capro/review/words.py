"""Texts for the page: plain, and cut into pieces of which some match the class. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from capro.wording import plain

LONGEST = 2000  # characters of a text in the page
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    "a an and any are as at be by can for from has have in into is it its not of on one or other some such "
    "that the their these they this to used usually very was which who with you your".split()
)


def stem(word: str) -> str:
    """A word without case and plural.

    >>> stem("Snakes"), stem("glass"), stem("boxes")
    ('snake', 'glass', 'box')
    """
    word = word.lower()
    if len(word) > 4 and word.endswith(("xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def meaning_words(texts: Iterable[str]) -> set[str]:
    """The words of names and definitions that say something.

    >>> sorted(meaning_words(["tiger cat", "a cat of the woods"]))
    ['cat', 'tiger', 'wood']
    """
    found = {stem(word) for text in texts for word in _WORD.findall(text.replace("_", " "))}
    return {word for word in found if word not in _COMMON and len(word) > 1}


def marked(text: str, words: set[str]) -> list[tuple[str, bool]]:
    """Pieces of a web text in order, and whether each is a word that matches.

    >>> marked("two Snakes here", {"snake"})
    [('two ', False), ('Snakes', True), (' here', False)]
    """
    text = plain(text, LONGEST)
    pieces: list[tuple[str, bool]] = []
    at = 0
    for found in _WORD.finditer(text):
        if stem(found[0]) in words:
            if found.start() > at:
                pieces.append((text[at : found.start()], False))
            pieces.append((found[0], True))
            at = found.end()
    return [*pieces, *([(text[at:], False)] if at < len(text) else [])]
