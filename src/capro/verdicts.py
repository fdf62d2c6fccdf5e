"""Verdicts as tables: what was decided on each training sample, and why, in numbers and words.

Columns that cleanlab's users know keep cleanlab's names and meaning: every ``*_score`` lies in
[0, 1] and is *low* where something is likely wrong; ``is_*_issue`` is the decision; the near
duplicates of a sample are listed without the sample itself.

- ``label_score``: belief in the given label, the fused score o of Eq. 6.
- ``outlier_score``: exp(-a / median a), a the mean cosine distance to the k nearest pictures; an
  issue where a lies above Q3 + 1.7 IQR.
- ``near_duplicate_score``: 1 - exp(-d / median d), d the distance to the nearest picture;
  duplicates are pairs with d below 0.13 of that median.

Cost beyond the neighbour search (see graph/neighbors.py): O(N k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capro.graph.neighbors import Neighbors
from capro.labels import Decision, PairDecision

NEIGHBORS = 10  # cleanlab's k
OUTLIER_IQR = 1 / 0.37037 - 1  # cleanlab's default threshold for features, as a multiple of the IQR
DUPLICATE_SHARE = 0.13  # cleanlab's default, of the median distance to the nearest
SPOKE = 5  # neighbours named per sample
NAMED = 3  # of them in a sentence, of classes as well
TINY = float(np.finfo(np.float64).eps)

Floats = NDArray[np.floating[Any]]
Names = NDArray[np.object_]


# --- pictures: outliers and near duplicates -------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """What the visual neighbourhood says of each sample."""

    outlier_score: NDArray[np.float64]  # (n,), low: unlike all others
    is_outlier: NDArray[np.bool_]
    duplicate_score: NDArray[np.float64]  # (n,), low: very like another
    duplicates: list[NDArray[np.int64]]  # rows of the near duplicates, ascending


def look_at_pictures(near: Neighbors) -> Pictures:
    """Outlier and near-duplicate scores from the nearest pictures, (n, k) by cosine.

    A sample without any neighbour (a zero feature, or a set of one) is an outlier with score 0 and
    has no duplicate.

    >>> from capro.graph.neighbors import nearest
    >>> found = look_at_pictures(nearest([[1, 0], [1, 0], [1, 0.2], [1, 0.4], [1, 0.7]], k=2))
    >>> [rows.tolist() for rows in found.duplicates]
    [[1], [0], [], [], []]
    """
    known = near.index >= 0
    distance = np.where(known, np.clip(1 - near.similarity.astype(np.float64), 0, 2), np.nan)
    distance[distance < 1e-6] = 0.0  # float32's rounding of a cosine of one
    count = known.sum(axis=1)
    alone = count == 0
    mean = np.divide(
        np.nansum(distance, axis=1), count, out=np.full(len(count), np.nan), where=~alone
    )
    first = distance[:, 0] if distance.size else np.full(len(count), np.nan)
    if alone.all():
        zero = np.zeros(len(count))
        nobody = [np.zeros(0, np.int64) for _ in count]
        return Pictures(zero, ~alone, np.ones(len(count)), nobody)
    typical, closest = (max(float(np.nanmedian(x)), 100 * TINY) for x in (mean, first))
    low, high = np.nanquantile(mean, [0.25, 0.75])
    limit = high + OUTLIER_IQR * (high - low)
    return Pictures(
        outlier_score=np.where(alone, 0.0, np.exp(-np.nan_to_num(mean) / typical)),
        is_outlier=alone | (mean > limit),
        duplicate_score=np.where(alone, 1.0, 1 - np.exp(-np.nan_to_num(first) / closest)),
        duplicates=_mutual(near.index, distance < DUPLICATE_SHARE * closest),
    )


def _mutual(index: NDArray[np.int32], close: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Each row's close others, made symmetric: who is a duplicate of whom goes both ways."""
    found: list[set[int]] = [set() for _ in index]
    for row, place in np.argwhere(close).tolist():
        other = int(index[row, place])
        found[row].add(other)
        found[other].add(row)
    return [np.array(sorted(others), dtype=np.int64) for others in found]


def spoke_for(graph: Any | None, count: int) -> list[NDArray[np.int64]]:
    """Rows of the neighbours whose texts were lent to each sample, closest first, at most SPOKE.

    Args:
        graph: Adjacency of the text enhancement with ``data``, ``indices``, ``indptr``; or None.
        count: n.
    """
    if graph is None:
        return [np.zeros(0, np.int64) for _ in range(count)]
    found = []
    for row in range(count):
        part = slice(int(graph["indptr"][row]), int(graph["indptr"][row + 1]))
        order = np.argsort(-graph["data"][part], kind="stable")[:SPOKE]
        found.append(graph["indices"][part][order].astype(np.int64))
    return found


def _count(number: int, noun: str) -> str:
    """``1 picture``, ``2 pictures``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- evidence in common ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Everything verdicts are written from, by training row."""

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
    pictures: Pictures
    spoke: list[NDArray[np.int64]]
    gamma: float
    text: Floats | None = None  # t, (n, C), where texts were heard in the rule

    def distances(self, ids: Sequence[str], names: Sequence[str | None]) -> NDArray[np.float64]:
        """d* of each (id, class); nan where the class is none of the sample's web labels."""
        asked = pd.DataFrame({"id": ids, "class": names}, dtype=object)
        found = asked.merge(self.text_distance, how="left", on=["id", "class"], validate="m:1")
        return found["distance"].to_numpy(dtype=np.float64)

    def common(self) -> dict[str, Any]:
        """Columns that do not depend on the task."""
        pictures = self.pictures
        return {
            "is_outlier_issue": pictures.is_outlier,
            "outlier_score": pictures.outlier_score,
            "is_near_duplicate_issue": np.array([len(rows) > 0 for rows in pictures.duplicates]),
            "near_duplicate_score": pictures.duplicate_score,
            "near_duplicate_sets": [self.ids[rows].tolist() for rows in pictures.duplicates],
            "neighbors": [self.ids[rows].tolist() for rows in self.spoke],
        }

    def spoken(self) -> NDArray[np.float64]:
        """What the text says of each given label (one label only); nan where it says nothing."""
        if self.text is None:
            return np.full(len(self.ids), np.nan)
        known = (self.given >= 0) & self.text.any(axis=1)
        return np.where(known, self.text[np.arange(len(self.ids)), self.given], np.nan)

    def aside(self, row: int) -> str:
        """What the picture adds to a sentence."""
        copies = len(self.pictures.duplicates[row])
        text = " The picture is unlike the others." if self.pictures.is_outlier[row] else ""
        if copies:
            text += f" It nearly equals {_count(copies, 'other picture')}."
        return text


# --- one label ------------------------------------------------------------------------------------


def single_label(evidence: Evidence) -> pd.DataFrame:
    """One row per training sample."""
    e = evidence
    names = np.array([*e.classes, None], dtype=object)  # index -1: no label
    rows = np.arange(len(e.ids))
    best = e.fused.argmax(axis=1)
    given = names[e.given]
    distance = e.distances(list(e.ids), list(given))
    changed = (e.decisions == int(Decision.RELABEL)) | (e.decisions == int(Decision.DROP))
    frame = {
        "id": e.ids,
        "given_label": given,
        "corrected_label": names[e.corrected],
        "decision": [Decision(int(d)).name.lower() for d in e.decisions],
        "is_label_issue": changed,
        "label_score": np.where(e.given >= 0, e.fused[rows, e.given], 0.0),
        "predicted_label": names[best],
        **e.common(),
        "fused_score": e.fused.max(axis=1),
        "prototype_similarity": np.where(e.given >= 0, e.similarity[rows, e.given], np.nan),
        "classifier_probability": np.where(e.given >= 0, e.classifier[rows, e.given], np.nan),
        "text_probability": e.spoken(),
        "text_distance": distance,
        "evidence": [_sentence(e, row, float(distance[row])) for row in range(len(e.ids))],
    }
    return pd.DataFrame(frame)


def _sentence(e: Evidence, row: int, distance: float) -> str:
    """One sentence for one sample, from what decided it."""
    label = e.classes[e.given[row]] if e.given[row] >= 0 else None
    belief = float(e.fused[row, e.given[row]]) if label is not None else 0.0
    best = int(e.fused[row].argmax())
    top = float(e.fused[row, best])
    decision = Decision(int(e.decisions[row]))
    if decision is Decision.ANCHOR:
        helpers = len(e.spoke[row])
        lent = f" and the texts of {_count(helpers, 'similar picture')}" if helpers else ""
        text = (
            f"Anchor of '{label}': its own text{lent} lie {distance:.2f} from the class's meaning"
        )
        text = text if helpers else text.replace(" lie ", " lies ")
        text += f"; belief in '{label}' is {belief:.2f}."
    elif decision is Decision.RELABEL:
        best = int(e.corrected[row])
        text = (
            f"Relabelled from '{label}' to '{e.classes[best]}': belief in '{e.classes[best]}' is "
            f"{top:.2f}, above {e.gamma:.2f}, and in '{label}' {belief:.2f}"
            f"{_texts_compared(e, row, best)}{_votes(e, row, best)}."
        )
    elif decision is Decision.DROP:
        text = (
            f"Dropped: no class reaches {e.gamma:.2f} (best is '{e.classes[best]}' with {top:.2f}), "
            f"and belief in '{label}' is {belief:.2f}, below chance ({1 / len(e.classes):.2f})."
        )
    elif best == e.given[row]:
        text = (
            f"Kept as '{label}': no class is believed more, with {belief:.2f} "
            f"(classifier {e.classifier[row, best]:.2f}, prototype {e.similarity[row, best]:.2f}"
            f"{_text_says(e, row, best)})"
            f"{_votes(e, row, best)}."
        )
    else:
        text = (
            f"Kept as '{label}' for want of proof: '{e.classes[best]}' is believed more, with "
            f"{top:.2f}, but not above {e.gamma:.2f}; '{label}' has {belief:.2f}."
        )
    return text + e.aside(row)


def _text_says(e: Evidence, row: int, label: int) -> str:
    if e.text is None:
        return ""
    return f", text {e.text[row, label]:.2f}" if e.text[row].any() else ", no text"


def _texts_compared(e: Evidence, row: int, label: int) -> str:
    if e.text is None or not e.text[row].any() or e.given[row] < 0:
        return ""
    return f" (its text says {e.text[row, label]:.2f} and {e.text[row, e.given[row]]:.2f})"


def _votes(e: Evidence, row: int, label: int) -> str:
    """How many of the neighbours that lent their text carry a class in the cleaned set."""
    others = e.spoke[row]
    if not len(others):
        return ""
    agree = int((e.corrected[others] == label).sum())
    near = _count(len(others), "similar picture")
    return f"; of {near} that lent their texts, {agree} are '{e.classes[label]}' after cleaning"


# --- several labels -------------------------------------------------------------------------------


def pairs(evidence: Evidence) -> pd.DataFrame:
    """Multi-label: one row per (sample, class) that was given or is in the corrected set."""
    e = evidence
    names = np.array(e.classes, dtype=object)
    out = np.asarray((e.corrected < 0).any(axis=1))
    after = np.where(out[:, None], 0, e.corrected)
    row, column = np.nonzero((e.given > 0) | (after > 0))
    distance = e.distances(list(e.ids[row]), list(names[column]))
    return pd.DataFrame(
        {
            "id": e.ids[row],
            "class": names[column],
            "given": e.given[row, column] > 0,
            "corrected": after[row, column] > 0,
            "decision": [PairDecision(int(d)).name.lower() for d in e.decisions[row, column]],
            "anchor": e.anchored[row, column],
            "sample_is_out": out[row],
            "label_score": _confidence(e)[row, column],
            "fused_score": e.fused[row, column],
            "prototype_similarity": e.similarity[row, column],
            "classifier_probability": e.classifier[row, column],
            "text_distance": distance,
        }
    )


def _confidence(e: Evidence) -> Floats:
    """Belief in what was given, per pair: o where the label was given, 1 - o where not."""
    return np.where(e.given > 0, e.fused, 1 - e.fused)


def multi_label(evidence: Evidence) -> pd.DataFrame:
    """Multi-label: one row per training sample, labels as lists.

    ``label_score`` is the least belief in any of its given labels and given absences; the sample's
    numbers are those of the class that has it.
    """
    e = evidence
    rows = np.arange(len(e.ids))
    out = np.asarray((e.corrected < 0).any(axis=1))
    after = np.where(out[:, None], 0, e.corrected) > 0
    given = e.given > 0
    changed = out | (after != given).any(axis=1)
    anchor = e.anchored.any(axis=1)
    decision = np.select([out, changed, anchor], ["drop", "relabel", "anchor"], "keep")
    confidence = _confidence(e)
    worst = confidence.argmin(axis=1)
    score = confidence[rows, worst]
    distance = e.distances(list(e.ids), [e.classes[c] for c in worst.tolist()])
    frame = {
        "id": e.ids,
        "given_labels": _lists(given, e.classes),
        "corrected_labels": _lists(after, e.classes),
        "decision": decision,
        "is_label_issue": changed,
        "label_score": score,
        "predicted_labels": _lists(e.fused > 0.5, e.classes),
        **e.common(),
        "fused_score": e.fused[rows, worst],
        "prototype_similarity": e.similarity[rows, worst],
        "classifier_probability": e.classifier[rows, worst],
        "text_distance": distance,
        "evidence": [
            _sentence_of_set(e, row, given[row], after[row], bool(out[row]))
            for row in range(len(e.ids))
        ],
    }
    return pd.DataFrame(frame)


def _lists(member: NDArray[np.bool_], classes: Sequence[str]) -> list[list[str]]:
    return [[classes[c] for c in np.flatnonzero(row).tolist()] for row in member]


def _sentence_of_set(
    e: Evidence, row: int, given: NDArray[np.bool_], after: NDArray[np.bool_], out: bool
) -> str:
    if out:
        lost = _named(e, row, given)
        text = f"Dropped: it lost every label it came with; belief in {lost}."
        return text + e.aside(row)
    anchors = e.anchored[row]
    parts = []
    if (after & ~given).any():
        parts.append(f"gains {_named(e, row, after & ~given)}")
    if (given & ~after).any():
        parts.append(f"loses {_named(e, row, given & ~after)}")
    if (given & after & anchors).any():
        parts.append(f"is an anchor of {_named(e, row, given & after & anchors)}")
    if (given & after & ~anchors).any():
        parts.append(f"keeps {_named(e, row, given & after & ~anchors)}")
    text = ", ".join(parts) or "has no label, and none is believed in enough to be given"
    return f"It {text}.{e.aside(row)}"


def _named(e: Evidence, row: int, chosen: NDArray[np.bool_]) -> str:
    """Classes with their belief, the first few."""
    found = np.flatnonzero(chosen)
    words = [f"'{e.classes[c]}' ({e.fused[row, c]:.2f})" for c in found[:NAMED]]
    more = len(found) - NAMED
    return " and ".join(words) + (f" and {more} more" if more > 0 else "")
