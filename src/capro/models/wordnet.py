"""WordNet 3.0 nouns, offline: senses of a word, ids of ImageNet, and the text of a sense.

The table beside this file is read once per process (82,115 synsets, about 0.3 s); a synset is
parsed when it is asked for. `scripts/make_wordnet.py` makes it; WORDNET-LICENSE is Princeton's.
"""

from __future__ import annotations

import difflib
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from capro.errors import ConfigError
from capro.wording import many

TABLE = Path(__file__).with_name("wordnet.txt.xz")

# Lexicographer files of the nouns, by number (lexnames(5WN)); 03 holds the tops of all the others.
_FILES = """
Tops act animal artifact attribute body cognition communication event feeling food group location
motive object person phenomenon plant possession process quantity relation shape state substance
time
"""
KINDS = dict(enumerate(_FILES.split(), start=3))

# Endings of regular plurals and what replaces them, as morphy(7WN) has them for nouns.
_ENDINGS = [rule.split(">") for rule in "s> ses>s xes>x zes>z ches>ch shes>sh men>man ies>y".split()]

_WNID = re.compile(r"n(\d{8})", re.ASCII | re.IGNORECASE)
_NAMED = re.compile(r"(.+)\.n\.(\d{1,4})", re.ASCII | re.IGNORECASE | re.DOTALL)

MAX_HYPONYMS = 40  # `dog` has 18, `plant` hundreds; more than fits 256 tokens in any case


@dataclass(frozen=True)
class Synset:
    """One sense: a set of synonyms with one definition."""

    offset: int
    kind: str  # lexicographer file, such as 'animal'
    lemmas: tuple[str, ...]  # underscores for spaces, as in WordNet
    gloss: str  # definition, then examples in quotes
    hypernyms: tuple[int, ...]  # offsets; instance hypernyms as well
    hyponyms: tuple[int, ...]  # offsets, ascending

    @property
    def wnid(self) -> str:
        """Id of ImageNet and WebVision.

        >>> resolve("tiger_cat.n.02").wnid
        'n02123159'
        """
        return f"n{self.offset:08d}"

    @property
    def name(self) -> str:
        """First lemma and its sense number.

        >>> resolve("n02123159").name
        'tiger_cat.n.02'
        """
        word = self.lemmas[0].lower()
        return f"{word}.n.{_table().offsets(word).index(self.offset) + 1:02d}"

    @property
    def definition(self) -> str:
        """The gloss without its examples.

        >>> resolve("dog.n.03").definition
        'informal term for a man'
        """
        return re.split(r';\s*"', self.gloss, maxsplit=1)[0].strip()

    @property
    def words(self) -> tuple[str, ...]:
        """Lemmas with spaces.

        >>> resolve("n02123159").words
        ('tiger cat',)
        """
        return tuple(lemma.replace("_", " ") for lemma in self.lemmas)


class _Table:
    """The file in memory. ``single`` has the offset of each lower-case lemma (the last one where it has
    several), ``several`` all offsets of such a lemma in WordNet's order.
    """

    def __init__(self) -> None:
        text = lzma.decompress(TABLE.read_bytes()).decode("utf-8")
        columns = [part.split("\n") for part in text.rstrip("\n").split("\n\n")]
        numbers, *self._columns, orders, plurals = columns
        _, lemmas, hypernyms, _ = self._columns
        offsets = [int(number) for number in numbers]
        self.at = {offset: at for at, offset in enumerate(offsets)}
        self._hyponyms: dict[str, list[int]] = {}  # offset as it is written -> offsets, ascending
        self.single: dict[str, int] = {}
        for offset, words, above in zip(offsets, lemmas, hypernyms, strict=True):
            for word in words.lower().split(" "):
                self.single[word] = offset
            for hypernym in above.split(" "):
                self._hyponyms.setdefault(hypernym, []).append(offset)
        self.several = {word: [int(each) for each in rest] for word, *rest in map(str.split, orders)}
        self.plurals = {plural: words for plural, *words in map(str.split, plurals)}
        self._parsed: dict[int, Synset] = {}

    @cached_property
    def squashed(self) -> dict[str, list[str]]:
        """Lemmas by their letters alone: `tshirt` -> `t-shirt`. Built only for unknown words."""
        lemmas: dict[str, list[str]] = {}
        for lemma in self.single:
            lemmas.setdefault(_squash(lemma), []).append(lemma)
        return lemmas

    def offsets(self, lemma: str) -> list[int]:
        return self.several.get(lemma) or [self.single[lemma]]

    def synset(self, offset: int) -> Synset:
        if offset not in self._parsed:
            lex, lemmas, hypernyms, gloss = (column[self.at[offset]] for column in self._columns)
            self._parsed[offset] = Synset(
                offset=offset,
                kind=KINDS[int(lex)],
                lemmas=tuple(lemmas.split(" ")),
                gloss=gloss,
                hypernyms=tuple(int(text) for text in hypernyms.split(" ") if text != "-"),
                hyponyms=tuple(self._hyponyms.get(f"{offset:08d}", ())),
            )
        return self._parsed[offset]


_table = cache(_Table)  # read once per process


def synset(offset: int) -> Synset:
    """The synset at an offset of WordNet 3.0.

    >>> synset(2123159).definition
    'a cat having a striped coat'
    """
    try:
        return _table().synset(offset)
    except KeyError:
        raise ConfigError(
            f"WordNet 3.0 has no noun sense at n{offset:08d}",
            hint="take an id of WordNet 3.0, as ImageNet has them (those of 3.1 differ), "
            "or write the sense as in 'tiger_cat.n.02'",
        ) from None


def _joined(word: str) -> str:
    return "_".join(re.split(r"[\s_]+", word.strip().lower()))


def _squash(word: str) -> str:
    return re.sub(r"[\W_]+", "", word.lower())


def _singulars(word: str) -> Iterator[str]:
    """Candidates for the singular of one lower-case word; not all of them are words."""
    yield from _table().plurals.get(word, ())
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending):
            yield word[: -len(ending)] + replacement


def _forms(word: str) -> list[str]:
    """Lemmas that a word may be, best first: as it is written, then its singulars."""
    table = _table()
    base = _joined(word)
    head, separator, last = base.rpartition("_")
    spellings = [base, base.replace("-", "_"), base.replace("_", "-"), *table.plurals.get(base, ())]
    spellings += [head + separator + singular for singular in _singulars(last)]
    forms = [form for form in spellings if form in table.single]
    if not forms:  # where words are joined or hyphenated differs between writers; letters do not
        letters = _squash(base)
        keys = [letters, *_singulars(letters)] if letters else []
        forms = [form for key in keys for form in table.squashed.get(key, ())]
    return list(dict.fromkeys(forms))


def lemma_offsets(noun: str) -> list[int]:
    """Offsets of the senses of a lower-case noun as it is written and of its singulars; quick, no other spelling.

    >>> lemma_offsets("tiger cats") == lemma_offsets("tiger cat"), lemma_offsets("of")
    (True, [])
    """
    table = _table()
    head, separator, last = noun.replace(" ", "_").rpartition("_")
    forms = [head + separator + form for form in (last, *_singulars(last))]
    return list(
        dict.fromkeys(offset for form in forms if form in table.single for offset in table.offsets(form))
    )


def is_wnid(text: str) -> bool:
    """Whether a text has the form of an id.

    >>> is_wnid("n02123159"), is_wnid("tiger")
    (True, False)
    """
    return _WNID.fullmatch(text.strip()) is not None


def is_lemma(word: str) -> bool:
    """Whether a lower-case word is a noun of WordNet, or the plural of one; quick.

    >>> is_lemma("butterflies"), is_lemma("goldengate")
    (True, False)
    """
    single = _table().single
    return word in single or any(singular in single for singular in _singulars(word))


def senses(word: str) -> list[Synset]:
    """Noun senses of a word or phrase in WordNet's order, [] where there is none.

    Case, plurals, and spaces against hyphens and underscores do not matter. Senses of the word as
    it is written come before those of its singular.

    >>> [sense.name for sense in senses("Tiger Cats")]
    ['tiger_cat.n.01', 'tiger_cat.n.02']
    >>> senses("Tshirts")[0].lemmas
    ('jersey', 'T-shirt', 'tee_shirt')
    """
    table = _table()
    offsets = [offset for form in _forms(word) for offset in table.offsets(form)]
    return [table.synset(offset) for offset in dict.fromkeys(offsets)]


def resolve(reference: str) -> Synset:
    """The synset of `n02123159`, `tiger_cat.n.02`, or the first sense of a plain word.

    >>> resolve("n02123159") == resolve("tiger_cat.n.02") == resolve("Tiger cat.n.2")
    True
    >>> resolve("mice").name
    'mouse.n.01'
    """
    text = reference.strip()
    if match := _WNID.fullmatch(text):
        return synset(int(match[1]))
    if match := _NAMED.fullmatch(text):
        text = match[1]
        if forms := _forms(text):  # the number counts the senses of one lemma, the first form
            offsets = _table().offsets(forms[0])
            number = int(match[2])
            if 1 <= number <= len(offsets):
                return synset(offsets[number - 1])
            choices = [
                f"{forms[0]}.n.{at:02d} ({synset(offset).definition})"
                for at, offset in enumerate(offsets[:9], start=1)
            ]
            raise ConfigError(
                f"'{reference}': WordNet 3.0 has {many(len(offsets), 'noun sense')} of '{forms[0]}'",
                hint="take " + "; ".join(choices),
            )
    elif found := senses(text):
        return found[0]
    raise ConfigError(f"'{reference}' is not a noun of WordNet 3.0", hint=_spelling_hint(text))


def _spelling_hint(word: str) -> str:
    base = _joined(word)[:64]
    near = [
        lemma  # difflib over all 117,798 lemmas would take seconds
        for lemma in _table().single
        if lemma[:1] == base[:1] and abs(len(lemma) - len(base)) <= 2
    ]
    close = difflib.get_close_matches(base, near, n=3, cutoff=0.7)
    advice = "give a definition in your own words, or a sense such as 'tiger_cat.n.02'"
    if not close:
        return advice
    return "did you mean " + " or ".join(f"'{lemma}'" for lemma in close) + f"? Else {advice}"


def sense_text(sense: Synset) -> str:
    """Text t^c of a textual prototype (docs/paper.md, textual prototypes).

    Encoders truncate (MiniLM at 256 tokens, about ten relatives), so the most informative comes first:
    definition and synonyms, then hypernyms with theirs, then hyponyms, those with most kinds of
    their own first. Examples in the gloss are left out: they show idioms more often than the thing.

    >>> sense_text(resolve("n02123159"))
    'a cat having a striped coat; tiger cat; any domesticated member of the genus Felis; \
domestic cat, house cat, Felis domesticus, Felis catus'
    """
    hyponyms = sorted(map(synset, sense.hyponyms), key=lambda each: -len(each.hyponyms))
    relatives = [*map(synset, sense.hypernyms), *hyponyms[:MAX_HYPONYMS]]
    return "; ".join(f"{each.definition}; {', '.join(each.words)}" for each in [sense, *relatives])
