"""Writing verdicts: what was decided on each training sample, and why, as table rows and as a sentence.

Inside, labels are numbers by training row; the names of classes and samples appear here, in what people read.
`capro.results.store` reads the tables back.

Columns that cleanlab's users know keep cleanlab's names and meaning: every ``*_score`` lies in
[0, 1] and is *low* where something is likely wrong; ``is_*_issue`` is the decision; the near
duplicates of a sample are listed without the sample itself.

- ``label_score``: the score of the given label: its fused score o of Eq. 6, or its posterior.
- ``outlier_score``, ``near_duplicate_score``: see `capro.results.neighbourhood`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from capro.core.kept_scores import Entries, KeptScores
from capro.core.label_rule import LabelDecision, PairDecision
from capro.data.labels import MULTI_LABEL, SINGLE_LABEL, kind_of
from capro.models.nouns import Naming
from capro.results.neighbourhood import Neighbourhood
from capro.wording import many

CLASSES_NAMED = 3  # in a sentence
# columns that a block of rows may leave empty
TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(["given_label", "corrected_label", "predicted_label", "evidence"], pa.string()),
    **dict.fromkeys(
        ["near_duplicate_sets", "neighbors", "given_labels", "corrected_labels", "predicted_labels"],
        pa.list_(pa.string()),
    ),
}

Floats = NDArray[np.floating[Any]]
Names = NDArray[np.object_]


@dataclass(frozen=True)
class VerdictRows:
    """Everything that the verdicts of n training rows are written from; C classes.

    Labels, decisions, anchors and what a person decided have one shape: (n,), or (n, C) for multi-label.
    """

    ids: Names  # (n,)
    classes: list[str]
    given: NDArray[np.int64]
    corrected: NDArray[np.int64]  # -1: dropped
    decisions: NDArray[np.int64]  # of LabelDecision, or of PairDecision
    anchored: NDArray[np.bool_]
    scores: Entries  # fused (o), classifier (p) and similarity (r; method plus: text), (n, k)
    text_distance: (
        Floats  # d* to the given label, (n,); multi-label: to each class, nan where it was not given
    )
    pictures: Neighbourhood
    duplicates: list[list[str]]  # ids of each row's near duplicates
    lenders: list[list[str]]  # ids of the neighbours whose texts were added to the row's
    agreeing: NDArray[np.int64]  # single-label: lenders that have the row's label after cleaning, (n,)
    has_text: NDArray[np.bool_]  # of its own, (n,)
    chosen_by: NDArray[np.object_]  # of an anchor: text, picture, chance or person, (n,)
    gamma: float
    none: Floats | None = None  # method plus, single-label: posterior of none of the classes, (n,)
    ask: NDArray[np.bool_] | None = None  # method plus: where a person should be asked
    person: NDArray[np.bool_] | None = None  # what a person has decided
    named: list[str] | None = None  # method plus, single-label: what the nouns of each row's texts name

    def _scores(self, name: str) -> Floats | None:
        """A score of every class, (n, C); None where the method does not have it."""
        if name not in (self.scores.dtype.names or ()):
            return None
        return KeptScores(self.scores, name, len(self.classes))[:]

    @cached_property
    def fused(self) -> Floats:
        """o, or the posterior of the method plus, (n, C)."""
        return KeptScores(self.scores, "fused", len(self.classes))[:]

    @cached_property
    def classifier(self) -> Floats:
        """p, (n, C)."""
        return KeptScores(self.scores, "classifier", len(self.classes))[:]

    @cached_property
    def similarity(self) -> Floats:
        """r, (n, C); nan with the method plus, which has no prototypes."""
        similarity = self._scores("similarity")
        return np.full_like(self.fused, np.nan) if similarity is None else similarity

    @cached_property
    def text(self) -> Floats | None:
        """Method plus: P(c | words), (n, C)."""
        return self._scores("text")

    # --- multi-label ---

    @cached_property
    def dropped(self) -> NDArray[np.bool_]:
        """Samples that left the dataset, (n,)."""
        return np.asarray(MULTI_LABEL.dropped(self.corrected))

    @cached_property
    def after(self) -> NDArray[np.bool_]:
        """The corrected labels, none of a dropped sample, (n, C)."""
        return np.asarray(self.corrected > 0) & ~self.dropped[:, None]

    @cached_property
    def confidence(self) -> Floats:
        """Score of what was given: o where the label was given, 1 - o where not, (n, C)."""
        return np.where(self.given > 0, self.fused, 1 - self.fused)


# --- columns --------------------------------------------------------------------------------------


def _picture_columns(e: VerdictRows) -> dict[str, Any]:
    return {
        "is_outlier_issue": e.pictures.is_outlier,
        "outlier_score": e.pictures.outlier_score,
        "is_near_duplicate_issue": np.array([len(ids) > 0 for ids in e.duplicates], dtype=bool),
        "near_duplicate_score": e.pictures.duplicate_score,
        "near_duplicate_sets": e.duplicates,
        "neighbors": e.lenders,
    }


def _pair_columns(e: VerdictRows, row: NDArray[Any], column: NDArray[Any]) -> dict[str, Any]:
    """Multi-label: the scores of (sample, class) pairs, and the distance of the text to the class."""
    return {
        "fused_score": e.fused[row, column],
        "prototype_similarity": e.similarity[row, column],
        "classifier_probability": e.classifier[row, column],
        "text_distance": e.text_distance[row, column],
    }


def _decided_by(person: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Who decided each entry of a mask; no column where no person decided anything."""
    return {} if person is None else {"decided_by": np.where(person, "person", "method").astype(object)}


def single_label(e: VerdictRows) -> pd.DataFrame:
    """Single-label: one row per training sample."""
    names = np.array([*e.classes, None], dtype=object)  # index -1: no label
    rows, labelled = np.arange(len(e.ids)), SINGLE_LABEL.labelled(e.given)
    at = rows, e.given
    columns = {
        "id": e.ids,
        "given_label": names[e.given],
        "corrected_label": names[e.corrected],
        "decision": [LabelDecision(int(d)).name.lower() for d in e.decisions],
        "is_label_issue": np.isin(e.decisions, [LabelDecision.RELABEL, LabelDecision.DROP]),
        "label_score": np.where(labelled, e.fused[at], 0.0),
        "predicted_label": names[e.fused.argmax(axis=1)],
        **_picture_columns(e),
        "fused_score": e.fused.max(axis=1),
        "prototype_similarity": np.where(labelled, e.similarity[at], np.nan),
        "classifier_probability": np.where(labelled, e.classifier[at], np.nan),
        "text_probability": _text_probability(e),
        "text_distance": e.text_distance,
        **({} if e.none is None else {"none_score": e.none, "needs_review": e.ask}),
        **_decided_by(e.person),
        "evidence": [sentence(e, row) for row in rows.tolist()],
    }
    return pd.DataFrame(columns)


def _text_probability(e: VerdictRows) -> NDArray[np.float64]:
    """Method plus, single-label: probability of each given label by the text; nan without a text."""
    if e.text is None:
        return np.full(len(e.ids), np.nan)
    known = SINGLE_LABEL.labelled(e.given) & e.has_text
    return np.where(known, e.text[np.arange(len(e.ids)), e.given], np.nan)


def pairs(e: VerdictRows) -> pd.DataFrame:
    """Multi-label: one row per (sample, class) that was given or is in the corrected set."""
    row, column = np.nonzero((e.given > 0) | e.after)
    return pd.DataFrame(
        {
            "id": e.ids[row],
            "class": np.array(e.classes, dtype=object)[column],
            "given": e.given[row, column] > 0,
            "corrected": e.after[row, column],
            "decision": [PairDecision(int(d)).name.lower() for d in e.decisions[row, column]],
            "anchor": e.anchored[row, column],
            "sample_is_out": e.dropped[row],
            "label_score": e.confidence[row, column],
            **_pair_columns(e, row, column),
            **_decided_by(None if e.person is None else e.person[row, column]),
        }
    )


def multi_label(e: VerdictRows) -> pd.DataFrame:
    """Multi-label: one row per training sample, labels as lists.

    ``label_score`` is the lowest score among all classes: of a given label its score, of any other class one minus
    its score. The sample's numbers are those of the class that has the lowest.
    """
    rows, given = np.arange(len(e.ids)), e.given > 0
    changed = e.dropped | (e.after != given).any(axis=1)
    worst = e.confidence.argmin(axis=1)
    columns = {
        "id": e.ids,
        "given_labels": _lists(given, e.classes),
        "corrected_labels": _lists(e.after, e.classes),
        "decision": np.select(
            [e.dropped, changed, e.anchored.any(axis=1)], ["drop", "relabel", "anchor"], "keep"
        ),
        "is_label_issue": changed,
        "label_score": e.confidence[rows, worst],
        "predicted_labels": _lists(e.fused > 0.5, e.classes),
        **_picture_columns(e),
        **_pair_columns(e, rows, worst),
        **({} if e.ask is None else {"needs_review": e.ask.any(axis=1)}),
        **_decided_by(None if e.person is None else np.asarray(e.person.any(axis=1))),
        "evidence": [sentence(e, row) for row in rows.tolist()],
    }
    return pd.DataFrame(columns)


def _lists(member: NDArray[np.bool_], classes: Sequence[str]) -> list[list[str]]:
    return [[classes[c] for c in np.flatnonzero(row).tolist()] for row in member]


# --- the evidence as a sentence -------------------------------------------------------------------


def sentence(e: VerdictRows, row: int) -> str:
    """Why a sample has its verdict, from the numbers that decided it."""
    person = "Decided by a person. " if e.person is not None and e.person[row].any() else ""
    if kind_of(e.given).multi_label:
        text = _multi_label_sentence(e, row)
    elif e.none is not None:
        text = _posterior_sentence(e, row)
    else:
        text = _rule_sentence(e, row)
    outlier = " The picture is an outlier." if e.pictures.is_outlier[row] else ""
    copies = len(e.duplicates[row])
    near = f" It has {many(copies, 'near duplicate')}." if copies else ""
    return person + text + outlier + near


def _rule_sentence(e: VerdictRows, row: int) -> str:
    """Single-label: what the label rule, Eq. 7, made of the fused scores."""
    given, best = int(e.given[row]), int(e.fused[row].argmax())
    label = e.classes[given] if given >= 0 else None
    score = float(e.fused[row, given]) if given >= 0 else 0.0
    top, decision = float(e.fused[row, best]), LabelDecision(int(e.decisions[row]))
    if decision is LabelDecision.ANCHOR:
        return f"Anchor of '{label}': {_anchor_reason(e, row)}; the fused score of its label is {score:.2f}."
    if decision is LabelDecision.RELABEL:
        new = int(e.corrected[row])
        return (
            f"Relabelled from '{label}' to '{e.classes[new]}': the fused score of '{e.classes[new]}' is "
            f"{top:.2f}, above {e.gamma:.2f}, and that of '{label}' {score:.2f}{_votes(e, row)}."
        )
    if decision is LabelDecision.DROP:
        return (
            f"Dropped: no class has a fused score above {e.gamma:.2f} (the best is '{e.classes[best]}' "
            f"with {top:.2f}), and that of '{label}' is {score:.2f}, below chance ({1 / len(e.classes):.2f})."
        )
    if best == given:
        return (
            f"Kept as '{label}': it has the highest fused score, {score:.2f} (classifier "
            f"{e.classifier[row, best]:.2f}, prototype {e.similarity[row, best]:.2f}){_votes(e, row)}."
        )
    return (
        f"Kept as '{label}', since no class is sure: '{e.classes[best]}' has a higher fused score, "
        f"{top:.2f}, but not above {e.gamma:.2f}; '{label}' has {score:.2f}."
    )


def _anchor_reason(e: VerdictRows, row: int) -> str:
    """What made a sample an anchor: texts that exist, else its picture or chance."""
    if e.chosen_by[row] == "person":
        return "a person picked it"
    if e.chosen_by[row] == "chance":
        return "it was drawn at random from its class"
    if e.chosen_by[row] == "picture":
        return "there is no text, but its picture is one of the most typical of its class"
    distance = f"a distance of {e.text_distance[row]:.2f} to the class text"
    lenders = many(len(e.lenders[row]), "similar picture")
    if not e.has_text[row]:
        return f"it has no text, and the texts of {lenders} have {distance}"
    if e.lenders[row]:
        return f"its own text and the texts of {lenders} have {distance}"
    return f"its own text has {distance}"


def _votes(e: VerdictRows, row: int) -> str:
    """How many of the neighbours whose texts were added have the same class after cleaning."""
    if not e.lenders[row]:
        return ""
    return (
        f"; {e.agreeing[row]} of the {len(e.lenders[row])} similar pictures whose texts were added to it are "
        f"'{e.classes[e.corrected[row]]}' after cleaning"
    )


def _posterior_sentence(e: VerdictRows, row: int) -> str:
    """Method plus: the posterior, and the probabilities by label and texts alone and by the picture alone."""
    given, decision = int(e.given[row]), LabelDecision(int(e.decisions[row]))
    best = int(e.corrected[row]) if e.corrected[row] >= 0 else int(e.fused[row].argmax())

    def probability(c: int) -> str:
        sources = [*(["label"] if given >= 0 else []), *(["texts"] if e.has_text[row] else [])]
        words = f"{' and '.join(sources)} {e.text[row, c]:.2f}, " if e.text is not None and sources else ""
        return f"{e.fused[row, c]:.2f} ({words}picture {e.classifier[row, c]:.2f})"

    before = f"'{e.classes[given]}'" if given >= 0 else "no label"
    if decision is LabelDecision.RELABEL:
        has = f"; {before} has {probability(given)}" if given >= 0 else ""
        text = f"Relabelled from {before} to '{e.classes[best]}', which has a probability of {probability(best)}{has}."
    elif decision is LabelDecision.DROP:
        none = 0.0 if e.none is None else float(e.none[row])
        text = (
            f"Dropped: the probability that it shows none of the classes is {none:.2f}; "
            f"the best is '{e.classes[best]}' with {probability(best)}."
        )
    else:
        kind = "Anchor of" if decision is LabelDecision.ANCHOR else "Kept as"
        text = f"{kind} '{e.classes[best]}' with a probability of {probability(best)}."
    asked = e.ask is not None and bool(e.ask[row])
    doubt = " No class is probable enough: a person should decide." if asked else ""
    return text + ("" if e.named is None else e.named[row]) + doubt


def naming_sentence(field: str, naming: Naming, classes: Sequence[str]) -> str:
    """What the nouns of a text name; empty without nouns.

    >>> naming_sentence("title", Naming(0, "king charles spaniel"), ["dog"])
    " The title names 'king charles spaniel', a kind of 'dog'."
    >>> naming_sentence("tags", Naming(0, "dogs"), ["dog"]), naming_sentence("title", Naming(1, ""), ["dog"])
    (" The tags name 'dogs'.", ' The title names no class.')
    """
    if naming.answer < 0:
        return ""
    verb = "name" if field == "tags" else "names"
    if naming.answer == len(classes):
        return f" The {field} {verb} no class."
    name = classes[naming.answer]
    kind = "" if name.lower().replace("_", " ") in naming.noun else f", a kind of '{name}'"
    return f" The {field} {verb} '{naming.noun}'{kind}."


def _multi_label_sentence(e: VerdictRows, row: int) -> str:
    given, after, anchors = e.given[row] > 0, e.after[row], e.anchored[row]
    if e.dropped[row]:
        return f"Dropped: it lost every label that it came with: {_with_scores(e, row, given)}."
    parts = {
        "gains": after & ~given,
        "loses": given & ~after,
        "is an anchor of": given & after & anchors,
        "keeps": given & after & ~anchors,
    }
    text = ", ".join(f"{verb} {_with_scores(e, row, which)}" for verb, which in parts.items() if which.any())
    return f"It {text or 'has no label, and no class has a score high enough to be added'}."


def _with_scores(e: VerdictRows, row: int, chosen: NDArray[np.bool_]) -> str:
    """Some classes with their scores; the first few are named."""
    numbers = np.flatnonzero(chosen)
    words = [f"'{e.classes[c]}' ({e.fused[row, c]:.2f})" for c in numbers[:CLASSES_NAMED]]
    more = len(numbers) - CLASSES_NAMED
    return " and ".join(words) + (f" and {more} more" if more > 0 else "")
