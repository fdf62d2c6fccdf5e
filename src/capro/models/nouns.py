"""Nouns of WordNet in a text, and which classes they are kinds of.

"King Charles spaniel" is a noun of WordNet and a kind of dog; a language model's cosine only sees that "king" goes with
*lion*. A compound counts as one noun: "hot dog" is no kind of dog. Read from the raw text, whose stop words belong to
nouns ("king of beasts"); nouns do not reach across punctuation.

Cost: linear in the number of words; a phrase is looked up once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capro.models import wordnet
from capro.models.text_cleaning import STOP_WORDS, without_markup

LONGEST = 4  # words of a noun
NAMED = 0.3  # share of a noun's senses, the frequent ones counting more, from which a text names a class
WORDS_READ = 1_000  # of a text; encoders read about 256 tokens
SILENT = -1  # the answer to a text without any noun

_SEGMENT = re.compile(r"[^\w\s'’-]+")
_WORD = re.compile(r"[^\W\d_][^\W\d_'’-]*")


class Naming(NamedTuple):
    """Which class a text names."""

    answer: int  # a class, C for nouns that name no class, SILENT without nouns
    noun: str  # the first noun that names the class; "" where none does


class ClassNouns:
    """Which class a text names, by the nouns in it and the classes that these are kinds of.

    Args:
        senses: Offset of each class's sense in WordNet, None where it has none.

    >>> dog, truck = (wordnet.resolve(name).offset for name in ("dog.n.01", "truck.n.01"))
    >>> nouns = ClassNouns([dog, truck])
    >>> [nouns.read(text) for text in ("my King Charles spaniel", "tractor trailer", "a hot dog", "")]
    [Naming(answer=0, noun='king charles spaniel'), Naming(answer=1, noun='tractor trailer'), \
Naming(answer=2, noun=''), Naming(answer=-1, noun='')]
    """

    def __init__(self, senses: Sequence[int | None]) -> None:
        self.classes = len(senses)
        self._class_of: dict[int, list[int]] = {}
        for number, offset in enumerate(senses):
            if offset is not None:
                self._class_of.setdefault(offset, []).append(number)
        self._above = cache(self._nearest_classes)
        self._named = cache(self._classes_named)
        self.read = lru_cache(maxsize=100_000)(self._read)

    @property
    def knows_a_class(self) -> bool:
        """Whether any class has a sense."""
        return bool(self._class_of)

    def answers(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Of texts, (n,)."""
        return np.array([self.read(text).answer for text in texts], np.int64)

    def _read(self, text: str) -> Naming:
        strength, first, any_noun = dict[int, float](), dict[int, str](), False
        for noun in nouns(text):
            any_noun = True
            for number, share in self._named(noun).items():
                strength[number] = strength.get(number, 0.0) + share
                first.setdefault(number, noun)
        best = max(strength, key=lambda number: (min(strength[number], 1.0), -number), default=None)
        if best is None or strength[best] < NAMED:
            return Naming(self.classes if any_noun else SILENT, "")
        return Naming(best, first[best])

    def _classes_named(self, noun: str) -> dict[int, float]:
        """Share of a noun's senses that are kinds of each class; earlier senses are more frequent."""
        offsets = offsets_of(noun)
        weights = [1 / (rank + 1) for rank in range(len(offsets))]
        shares = dict[int, float]()
        for offset, weight in zip(offsets, weights, strict=True):
            for number in self._above(offset):
                shares[number] = shares.get(number, 0.0) + weight / sum(weights)
        return shares

    def _nearest_classes(self, offset: int) -> frozenset[int]:
        """The classes that a sense is a kind of; one below another hides it."""
        if offset in self._class_of:
            return frozenset(self._class_of[offset])
        above = wordnet.synset(offset).hypernyms
        return frozenset().union(*(self._above(hypernym) for hypernym in above))


def nouns(text: str) -> Iterator[str]:
    """Nouns of WordNet in a raw text, the longest at each place, none inside another.

    >>> list(nouns("A <b>hot dog</b> stand: dogs, king of beasts"))
    ['hot dog', 'stand', 'dogs', 'king of beasts']
    """
    read = 0
    for segment in _SEGMENT.split(without_markup(text).lower()):
        words = _WORD.findall(segment)[: WORDS_READ - read]
        read += len(words)
        at = 0
        while at < len(words):
            for size in range(min(LONGEST, len(words) - at), 0, -1):
                noun = " ".join(words[at : at + size])
                if (size > 1 or (len(noun) > 2 and noun not in STOP_WORDS)) and offsets_of(noun):
                    yield noun
                    break
            else:
                size = 1
            at += size


@cache
def offsets_of(noun: str) -> tuple[int, ...]:
    """Senses of a lower-case noun or its singular, in WordNet's order; none where it is no noun."""
    return tuple(wordnet.lemma_offsets(noun))


# --- the classes of an encoder's own head ---------------------------------------------------------

IMAGENET = Path(__file__).with_name(
    "imagenet.txt"
)  # WordNet ids of its 1,000 classes, in the order of every head


def head_senses(names: Sequence[str]) -> list[int | None]:
    """Senses of a head's classes, by WordNet ids or names ("tench, Tinca tinca"); of ImageNet's without names.

    >>> head_senses(["tench, Tinca tinca", "n02123159", "zzz"]) == [1440764, 2123159, None], len(head_senses([]))
    (True, 1000)
    """
    ids = IMAGENET.read_text(encoding="ascii").split()
    if not names or (len(names) == len(ids) and names[0].lower().startswith("tench")):
        names = ids
    return [_sense_of(name) for name in names]


def _sense_of(name: str) -> int | None:
    """The sense that has most of the comma-separated lemmas of a name; the most frequent one among equals."""
    if wordnet.is_wnid(name):
        return wordnet.resolve(name).offset
    lemmas = [lemma.strip().lower() for lemma in name.split(",")]
    senses = wordnet.senses(lemmas[0])
    shared = [sum(word.lower() in lemmas for word in sense.words) for sense in senses]
    return senses[int(np.argmax(shared))].offset if senses else None


def below_classes(senses: Sequence[int | None], classes: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Whether each sense is a kind of one of the senses of each class, (k,) x (C,) -> (k, C) in {0, 1}."""
    owners = dict[int, list[int]]()
    for number, offsets in enumerate(classes):
        for offset in offsets:
            owners.setdefault(offset, []).append(number)
    below = np.zeros((len(senses), len(classes)), np.float32)
    for row, sense in enumerate(senses):
        for above in () if sense is None else all_above(sense):
            below[row, owners.get(above, ())] = 1
    return below


@cache
def all_above(offset: int) -> frozenset[int]:
    """A sense and everything that it is a kind of.

    >>> wordnet.resolve("dog").offset in all_above(wordnet.resolve("beagle").offset)
    True
    """
    above = wordnet.synset(offset).hypernyms
    return frozenset({offset}).union(*(all_above(each) for each in above))
