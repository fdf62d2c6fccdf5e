"""Verdicts as tables: what was decided on each training sample, and why, in numbers and words.

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

from capro.core.label_rule import LabelDecision, PairDecision
from capro.results.neighbourhood import Neighbourhood
from capro.wording import many

NAMED = 3  # classes named in a sentence
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


# --- evidence in common ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Everything verdicts are written from, by training row: of all of them, or of a block.

    Rows of others (near duplicates, lenders) are rows of ``everybody``.
    """

    ids: Names  # (n,)
    classes: list[str]
    given: NDArray[np.int64]  # (n,) or (n, C)
    corrected: NDArray[np.int64]  # same shape, -1: out
    decisions: NDArray[np.int64]  # same shape
    anchored: NDArray[np.bool_]  # same shape
    fused: Floats  # o, (n, C)
    classifier: Floats  # p, (n, C)
    similarity: Floats  # r, (n, C)
    text_distance: pd.DataFrame  # id, class, distance: d* of each sample to its web classes
    pictures: Neighbourhood
    lenders: list[NDArray[np.int64]]  # neighbours whose texts were added to the sample's
    has_text: NDArray[np.bool_]  # of its own, (n,)
    chosen_by: NDArray[np.object_]  # of an anchor: text, picture, chance or person, (n,)
    gamma: float
    text: Floats | None = None  # t, (n, C), where texts count in the rule; method plus: P(c | words)
    none: Floats | None = None  # method plus, one label: posterior of none of these, (n,)
    ask: NDArray[np.bool_] | None = None  # method plus: where a person should be asked, shape of the labels
    person: NDArray[np.bool_] | None = None  # what a person has decided, shape of the labels

    everybody: tuple[Names, NDArray[np.int64]] | None = None  # ids and corrected of all, in a block

    @property
    def all_ids(self) -> Names:
        """Of all training rows."""
        return self.ids if self.everybody is None else self.everybody[0]

    @property
    def all_corrected(self) -> NDArray[np.int64]:
        """Of all training rows."""
        return self.corrected if self.everybody is None else self.everybody[1]

    def distances(self, ids: Names, names: Names) -> NDArray[np.float64]:
        """d* of each (id, class); nan where the class is none of the sample's web labels."""
        asked = pd.DataFrame({"id": ids, "class": names}, dtype=object)
        found = asked.merge(self.text_distance, how="left", on=["id", "class"], validate="m:1")
        return found["distance"].to_numpy(dtype=np.float64)

    @cached_property
    def out(self) -> NDArray[np.bool_]:
        """Samples that left the set, (n,)."""
        return np.asarray(
            self.corrected < 0 if self.corrected.ndim == 1 else (self.corrected < 0).any(axis=1)
        )

    @cached_property
    def after(self) -> NDArray[np.bool_]:
        """Several labels: the corrected ones, none of a sample that left, (n, C)."""
        return np.asarray(self.corrected > 0) & ~self.out[:, None]

    @cached_property
    def confidence(self) -> Floats:
        """Several labels: score of what was given, o where the label was given, 1 - o where not, (n, C)."""
        return np.where(self.given > 0, self.fused, 1 - self.fused)

    def scores(self, row: NDArray[Any], column: NDArray[Any]) -> dict[str, Any]:
        """The scores of (sample, class) pairs, and the distance of the text to the class."""
        names = np.array(self.classes, dtype=object)
        return {
            "fused_score": self.fused[row, column],
            "prototype_similarity": self.similarity[row, column],
            "classifier_probability": self.classifier[row, column],
            "text_distance": self.distances(self.ids[row], names[column]),
        }

    def common(self) -> dict[str, Any]:
        """Columns that do not depend on the task."""
        pictures = self.pictures
        return {
            "is_outlier_issue": pictures.is_outlier,
            "outlier_score": pictures.outlier_score,
            "is_near_duplicate_issue": np.array([len(rows) > 0 for rows in pictures.duplicates]),
            "near_duplicate_score": pictures.duplicate_score,
            "near_duplicate_sets": [self.all_ids[rows].tolist() for rows in pictures.duplicates],
            "neighbors": [self.all_ids[rows].tolist() for rows in self.lenders],
        }

    def decided_by(self, person: NDArray[np.bool_]) -> NDArray[np.object_]:
        """Who decided, for each entry of a mask."""
        return np.where(person, "person", "method").astype(object)

    def text_probability(self) -> NDArray[np.float64]:
        """Probability of each given label by the text (one label only); nan without a text."""
        if self.text is None:
            return np.full(len(self.ids), np.nan)
        read = (
            self.text.any(axis=1) if self.none is None else self.has_text
        )  # plus: the label counts there too
        known = (self.given >= 0) & read
        return np.where(known, self.text[np.arange(len(self.ids)), self.given], np.nan)

    def aside(self, row: int) -> str:
        """What the picture adds to a sentence."""
        copies = len(self.pictures.duplicates[row])
        text = " The picture is an outlier." if self.pictures.is_outlier[row] else ""
        if copies:
            text += f" It has {many(copies, 'near duplicate')}."
        return text


# --- one label ------------------------------------------------------------------------------------


def single_label(evidence: Evidence) -> pd.DataFrame:
    """One row per training sample."""
    e = evidence
    names = np.array([*e.classes, None], dtype=object)  # index -1: no label
    rows, labelled = np.arange(len(e.ids)), e.given >= 0
    at = rows, e.given
    distance = e.distances(e.ids, names[e.given])
    frame = {
        "id": e.ids,
        "given_label": names[e.given],
        "corrected_label": names[e.corrected],
        "decision": [LabelDecision(int(d)).name.lower() for d in e.decisions],
        "is_label_issue": np.isin(e.decisions, [LabelDecision.RELABEL, LabelDecision.DROP]),
        "label_score": np.where(labelled, e.fused[at], 0.0),
        "predicted_label": names[e.fused.argmax(axis=1)],
        **e.common(),
        "fused_score": e.fused.max(axis=1),
        "prototype_similarity": np.where(labelled, e.similarity[at], np.nan),
        "classifier_probability": np.where(labelled, e.classifier[at], np.nan),
        "text_probability": e.text_probability(),
        "text_distance": distance,
        **({} if e.none is None else {"none_score": e.none, "needs_review": e.ask}),
        **({} if e.person is None else {"decided_by": e.decided_by(e.person)}),
        "evidence": [_by_person(e, row) + _sentence(e, row, float(distance[row])) for row in rows.tolist()],
    }
    return pd.DataFrame(frame)


def _by_person(e: Evidence, row: int) -> str:
    """The beginning of the sentence where a person decided."""
    return "" if e.person is None or not e.person[row].any() else "Decided by a person. "


def _sentence(e: Evidence, row: int, distance: float) -> str:
    """One sentence for one sample, from what decided it."""
    given, best = int(e.given[row]), int(e.fused[row].argmax())
    label = e.classes[given] if given >= 0 else None
    score = float(e.fused[row, given]) if given >= 0 else 0.0
    top, decision = float(e.fused[row, best]), LabelDecision(int(e.decisions[row]))
    if e.none is not None:
        return _posterior_sentence(e, row) + e.aside(row)
    if decision is LabelDecision.ANCHOR:
        text = f"Anchor of '{label}': {_anchor_reason(e, row, distance)}; the fused score of its label is {score:.2f}."
    elif decision is LabelDecision.RELABEL:
        new = int(e.corrected[row])
        text = (
            f"Relabelled from '{label}' to '{e.classes[new]}': the fused score of '{e.classes[new]}' is "
            f"{top:.2f}, above {e.gamma:.2f}, and that of '{label}' {score:.2f}"
            f"{_texts_compared(e, row, new)}{_votes(e, row, new)}."
        )
    elif decision is LabelDecision.DROP:
        text = (
            f"Dropped: no class has a fused score above {e.gamma:.2f} (the best is '{e.classes[best]}' "
            f"with {top:.2f}), and that of '{label}' is {score:.2f}, below chance ({1 / len(e.classes):.2f})."
        )
    elif best == given:
        by_text = (
            "" if e.text is None else f", text {e.text[row, best]:.2f}" if e.text[row].any() else ", no text"
        )
        text = (
            f"Kept as '{label}': it has the highest fused score, {score:.2f} (classifier "
            f"{e.classifier[row, best]:.2f}, prototype {e.similarity[row, best]:.2f}{by_text})"
            f"{_votes(e, row, best)}."
        )
    else:
        text = (
            f"Kept as '{label}', since no class is sure: '{e.classes[best]}' has a higher fused score, "
            f"{top:.2f}, but not above {e.gamma:.2f}; '{label}' has {score:.2f}."
        )
    return text + e.aside(row)


def _anchor_reason(e: Evidence, row: int, distance: float) -> str:
    """What made a sample an anchor: texts that exist, else its picture or chance."""
    if e.chosen_by[row] == "person":
        return "a person picked it"
    if e.chosen_by[row] == "chance":
        return "it was drawn at random from its class"
    if e.chosen_by[row] == "picture":
        return "there is no text, but its picture is one of the most typical of its class"
    if not (e.has_text[row] or len(e.lenders[row])):
        return "there is no text, neither its own nor of a similar picture"  # chosen by an earlier version
    helpers = many(len(e.lenders[row]), "similar picture")
    if not e.has_text[row]:
        return (
            f"it has no text, and the texts of {helpers} have a distance of {distance:.2f} to the class text"
        )
    texts = f"its own text and the texts of {helpers} have" if len(e.lenders[row]) else "its own text has"
    return f"{texts} a distance of {distance:.2f} to the class text"


def _posterior_sentence(e: Evidence, row: int) -> str:
    """Method plus: the posterior, and the probabilities by label and texts alone and by the picture alone."""
    given, decision = int(e.given[row]), LabelDecision(int(e.decisions[row]))
    best = int(e.corrected[row]) if e.corrected[row] >= 0 else int(e.fused[row].argmax())

    def weighed(c: int) -> str:
        known = "label and texts" if e.has_text[row] else "label"
        known = known if given >= 0 else "texts" if e.has_text[row] else ""
        words = f"{known} {e.text[row, c]:.2f}, " if e.text is not None and known else ""
        return f"{e.fused[row, c]:.2f} ({words}picture {e.classifier[row, c]:.2f})"

    before = f"'{e.classes[given]}'" if given >= 0 else "no label"
    has = f"; {before} has {weighed(given)}" if given >= 0 else ""
    if decision is LabelDecision.RELABEL:
        text = f"Relabelled from {before} to '{e.classes[best]}', which has a probability of {weighed(best)}{has}."
    elif decision is LabelDecision.DROP:
        none = 0.0 if e.none is None else float(e.none[row])
        text = (
            f"Dropped: it shows none of the classes with a probability of {none:.2f}; "
            f"the best is '{e.classes[best]}' with {weighed(best)}."
        )
    else:
        kind = "Anchor of" if decision is LabelDecision.ANCHOR else "Kept as"
        text = f"{kind} '{e.classes[best]}' with a probability of {weighed(best)}."
    asked = e.ask is not None and bool(e.ask[row])
    return text + (" No class is probable enough: a person should decide." if asked else "")


def _texts_compared(e: Evidence, row: int, label: int) -> str:
    if e.text is None or not e.text[row].any() or e.given[row] < 0:
        return ""
    whose = "its text gives" if e.has_text[row] else "texts of similar pictures give"
    return f" ({whose} {e.text[row, label]:.2f} and {e.text[row, e.given[row]]:.2f})"


def _votes(e: Evidence, row: int, label: int) -> str:
    """How many of the neighbours whose texts were added have a class in the cleaned data set."""
    others = e.lenders[row]
    if not len(others):
        return ""
    agree = int((e.all_corrected[others] == label).sum())
    return (
        f"; {agree} of the {len(others)} similar pictures whose texts were added to it are "
        f"'{e.classes[label]}' after cleaning"
    )


# --- several labels -------------------------------------------------------------------------------


def pairs(evidence: Evidence) -> pd.DataFrame:
    """Multi-label: one row per (sample, class) that was given or is in the corrected set."""
    e = evidence
    row, column = np.nonzero((e.given > 0) | e.after)
    return pd.DataFrame(
        {
            "id": e.ids[row],
            "class": np.array(e.classes, dtype=object)[column],
            "given": e.given[row, column] > 0,
            "corrected": e.after[row, column],
            "decision": [PairDecision(int(d)).name.lower() for d in e.decisions[row, column]],
            "anchor": e.anchored[row, column],
            "sample_is_out": e.out[row],
            "label_score": e.confidence[row, column],
            **e.scores(row, column),
            **({} if e.person is None else {"decided_by": e.decided_by(e.person[row, column])}),
        }
    )


def multi_label(evidence: Evidence) -> pd.DataFrame:
    """Multi-label: one row per training sample, labels as lists.

    ``label_score`` is the lowest score among all classes: of a given label its score, of any other class one minus
    its score. The sample's numbers are those of the class that has the lowest.
    """
    e = evidence
    rows, given = np.arange(len(e.ids)), e.given > 0
    changed = e.out | (e.after != given).any(axis=1)
    worst = e.confidence.argmin(axis=1)
    frame = {
        "id": e.ids,
        "given_labels": _lists(given, e.classes),
        "corrected_labels": _lists(e.after, e.classes),
        "decision": np.select(
            [e.out, changed, e.anchored.any(axis=1)], ["drop", "relabel", "anchor"], "keep"
        ),
        "is_label_issue": changed,
        "label_score": e.confidence[rows, worst],
        "predicted_labels": _lists(e.fused > 0.5, e.classes),
        **e.common(),
        **e.scores(rows, worst),
        **({} if e.ask is None else {"needs_review": e.ask.any(axis=1)}),
        **({} if e.person is None else {"decided_by": e.decided_by(np.asarray(e.person.any(axis=1)))}),
        "evidence": [_by_person(e, row) + _sentence_of_set(e, row) for row in rows.tolist()],
    }
    return pd.DataFrame(frame)


def _lists(member: NDArray[np.bool_], classes: Sequence[str]) -> list[list[str]]:
    return [[classes[c] for c in np.flatnonzero(row).tolist()] for row in member]


def _sentence_of_set(e: Evidence, row: int) -> str:
    """One sentence for one sample with several labels."""
    given, after, anchors = e.given[row] > 0, e.after[row], e.anchored[row]
    if e.out[row]:
        return f"Dropped: it lost every label that it came with: {_named(e, row, given)}.{e.aside(row)}"
    parts = {
        "gains": after & ~given,
        "loses": given & ~after,
        "is an anchor of": given & after & anchors,
        "keeps": given & after & ~anchors,
    }
    text = ", ".join(f"{verb} {_named(e, row, which)}" for verb, which in parts.items() if which.any())
    return f"It {text or 'has no label, and no class has a score high enough to be added'}.{e.aside(row)}"


def _named(e: Evidence, row: int, chosen: NDArray[np.bool_]) -> str:
    """Classes with their scores, the first few."""
    found = np.flatnonzero(chosen)
    words = [f"'{e.classes[c]}' ({e.fused[row, c]:.2f})" for c in found[:NAMED]]
    more = len(found) - NAMED
    return " and ".join(words) + (f" and {more} more" if more > 0 else "")
