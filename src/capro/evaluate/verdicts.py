"""Verdicts as tables: what was decided on each training sample, and why, in numbers and words.

Columns that cleanlab's users know keep cleanlab's names and meaning: every ``*_score`` lies in
[0, 1] and is *low* where something is likely wrong; ``is_*_issue`` is the decision; the near
duplicates of a sample are listed without the sample itself.

- ``label_score``: belief in the given label, the fused score o of Eq. 6.
- ``outlier_score``, ``near_duplicate_score``: see `capro.evaluate.neighbourhood`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capro.evaluate.neighbourhood import Neighbourhood
from capro.method.label_rule import Decision, PairDecision
from capro.wording import many

NAMED = 3  # classes named in a sentence

Floats = NDArray[np.floating[Any]]
Names = NDArray[np.object_]


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
    pictures: Neighbourhood
    lenders: list[NDArray[np.int64]]
    gamma: float
    text: Floats | None = None  # t, (n, C), where texts count in the rule

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
            "neighbors": [self.ids[rows].tolist() for rows in self.lenders],
        }

    def text_probability(self) -> NDArray[np.float64]:
        """Probability of each given label by the text (one label only); nan without a text."""
        if self.text is None:
            return np.full(len(self.ids), np.nan)
        known = (self.given >= 0) & self.text.any(axis=1)
        return np.where(known, self.text[np.arange(len(self.ids)), self.given], np.nan)

    def aside(self, row: int) -> str:
        """What the picture adds to a sentence."""
        copies = len(self.pictures.duplicates[row])
        text = " The picture is unlike the others." if self.pictures.is_outlier[row] else ""
        if copies:
            text += f" It nearly equals {many(copies, 'other picture')}."
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
        "text_probability": e.text_probability(),
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
        helpers = len(e.lenders[row])
        lent = f" and the texts of {many(helpers, 'similar picture')}" if helpers else ""
        text = f"Anchor of '{label}': its own text{lent} lie {distance:.2f} from the class's meaning"
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
    return f" (its text gives {e.text[row, label]:.2f} and {e.text[row, e.given[row]]:.2f})"


def _votes(e: Evidence, row: int, label: int) -> str:
    """How many of the neighbours that lent their text carry a class in the cleaned set."""
    others = e.lenders[row]
    if not len(others):
        return ""
    agree = int((e.corrected[others] == label).sum())
    near = many(len(others), "similar picture")
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
            _sentence_of_set(e, row, given[row], after[row], bool(out[row])) for row in range(len(e.ids))
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
