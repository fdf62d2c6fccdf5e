"""Which sense of WordNet does a class mean? Its own texts, what a picture can show, and use decide.

The score of a sense is the mean similarity of the class's texts to the text of the sense, less a
penalty where its lexicographer file holds what pictures hardly show (a tiger that is a person's
character), less another that grows with the sense's rank in WordNet, where common senses come
first. The penalties are in units of the spread of similarities, so that they fit any encoder.

Measured with MiniLM and 200 texts a class, right first choices: queryweb32 33 of 33 (similarity
alone 27, WordNet's first sense 27), shopweb64 20 of 20 (18, 19), cococap64 16 of 16 (14, 16). With
40 texts a class queryweb32 has 31: two senses of `tank` and of `tractor` are nearly level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.models import wordnet
from capro.models.wordnet import Synset

# Lexicographer files of things that stand before a camera. Persons are left out although they do:
# a person sense of a word is nearly always a metaphor (tiger, bear, wolf, dog).
VISIBLE = ("animal", "artifact", "body", "food", "object", "plant")

# In units of the spread. On the three datasets every weight of 0.8 and more for the first, and of
# 0.5 to 0.7 for the second, gives 68 or 69 right choices of 69.
HARDLY_VISIBLE = 1.0
RANK = 0.6  # times log(rank)
CLOSE = 0.75  # a sense whose texts are this near to the best one's is plausible as well


@dataclass(frozen=True)
class Candidate:
    """One sense of a class name."""

    sense: Synset
    similarity: float | None  # mean over the class's texts; None where there are none
    score: float  # in units of the spread; only differences within a class mean something
    plausible: bool


@dataclass(frozen=True)
class Suggestion:
    """The senses of one class, best first."""

    name: str
    candidates: tuple[Candidate, ...]
    ambiguous: bool  # several senses are plausible
    texts: int  # that were compared
    head: str | None = None  # the word the senses are of, where WordNet lacks the whole name

    @property
    def best(self) -> Synset | None:
        """The suggested sense: None where WordNet has only the last word of the name."""
        return self.candidates[0].sense if self.candidates and self.head is None else None

    def comments(self) -> list[str]:
        """Lines for classes.yaml about the senses that were not chosen."""
        if self.best:
            others = self.candidates[1:]
            return ["other senses, best first:"] * bool(others) + [_line(each) for each in others]
        missing = f"WordNet has no sense of '{' '.join(self.name.split())}': add a definition"
        if self.head is None:
            return [missing]
        return [f"{missing}; senses of '{self.head}':", *map(_line, self.candidates)]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "sense": self.best.wnid if self.best else None,
            "ambiguous": self.ambiguous,
            "texts": self.texts,
            "senses_of": self.head or self.name,
            "senses": [
                {
                    "sense": each.sense.wnid,
                    "name": each.sense.name,
                    "kind": each.sense.kind,
                    "definition": each.sense.definition,
                    "similarity": each.similarity,
                    "score": each.score,
                    "plausible": each.plausible,
                }
                for each in self.candidates
            ],
        }


def _line(candidate: Candidate) -> str:
    sense = candidate.sense
    similarity = "" if candidate.similarity is None else f" {candidate.similarity:.2f}"
    mark = "?" if candidate.plausible else " "
    return f" {mark} {sense.wnid}{similarity} {sense.name} ({sense.kind}): {sense.definition}"


def rank_senses(
    texts_by_class: Mapping[str, Sequence[str]],
    encode: Callable[[Sequence[str]], NDArray[np.float32]],
    *,
    max_texts: int = 200,
) -> list[Suggestion]:
    """Rank the noun senses of every class name by the class's own texts.

    Args:
        texts_by_class: clean texts of each class; at most `max_texts` of them, evenly spread, are
            compared. Empty ones do not count.
        encode: from texts to unit vectors, such as `TextEncoder.encode`; called once.
        max_texts: bounds the cost: at most C x (max_texts + senses) texts are encoded.
    """
    found = {name: _senses(name) for name in texts_by_class}
    texts = {
        name: _spread([text for text in every if text.strip()], max_texts) if found[name][0] else []
        for name, every in texts_by_class.items()
    }
    flat = [text for each in texts.values() for text in each]
    glosses = [wordnet.sense_text(sense) for senses, _ in found.values() for sense in senses]
    vectors = encode([*flat, *glosses]) if flat else np.zeros((len(glosses), 1), dtype=np.float32)

    tables: dict[str, NDArray[np.float32]] = {}  # text x sense
    text_at, sense_at = 0, len(flat)
    for name, each in texts.items():
        s = vectors[text_at : (text_at := text_at + len(each))]
        prototypes = vectors[sense_at : (sense_at := sense_at + len(found[name][0]))]
        tables[name] = s @ prototypes.T
    scale = _scale(tables.values())
    return [_rank(name, senses, head, tables[name], scale) for name, (senses, head) in found.items()]


def _scale(tables: Iterable[NDArray[np.float32]]) -> float:
    """Spread of one text's similarities to the senses of its word, over all classes."""
    deviations = [
        (table - table.mean(axis=1, keepdims=True)).ravel()
        for table in tables
        if table.shape[0] and table.shape[1] > 1
    ]
    return max(float(np.concatenate(deviations).std()), 1e-6) if deviations else 1.0


def _rank(
    name: str, senses: Sequence[Synset], head: str | None, table: NDArray[np.float32], scale: float
) -> Suggestion:
    compared = len(table)
    means = table.mean(axis=0) / scale if compared else np.zeros(len(senses))
    scores = [
        float(mean) - HARDLY_VISIBLE * (sense.kind not in VISIBLE) - RANK * log(rank)
        for rank, (mean, sense) in enumerate(zip(means, senses, strict=True), start=1)
    ]
    order = sorted(range(len(senses)), key=lambda at: -scores[at])
    candidates = tuple(
        Candidate(
            senses[at],
            float(means[at] * scale) if compared else None,
            scores[at],
            plausible=at == order[0] or bool(means[at] > means[order[0]] - CLOSE),
        )
        for at in order
    )
    return Suggestion(name, candidates, sum(each.plausible for each in candidates) > 1, compared, head)


def _senses(name: str) -> tuple[list[Synset], str | None]:
    """Senses of a class name, or else of its last word, which is then named."""
    if wordnet.is_wnid(name):
        return [wordnet.resolve(name)], None
    # ImageNet names list synonyms between commas.
    parts = [part for part in name.split(",") if part.strip()]
    whole = list({sense: None for part in parts for sense in wordnet.senses(part)})
    words = name.replace("_", " ").split()
    if whole or len(words) < 2:
        return whole, None
    return wordnet.senses(words[-1]), words[-1]


def _spread(texts: Sequence[str], limit: int) -> list[str]:
    if len(texts) <= limit:
        return list(texts)
    return [texts[at * len(texts) // limit] for at in range(limit)]
