"""Decisions as the method takes them: arrays by training row, and the hash by which stages know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.data.labels import MULTI_LABEL, NO_CLASS, SINGLE_LABEL, kind_of
from capro.errors import DataError, RunError, did_you_mean
from capro.pipeline.artefacts import ANCHORS, CLEANED_LABELS
from capro.pipeline.checksums import fingerprint
from capro.pipeline.run import Run
from capro.review.answers import Decision
from capro.review.log import log_file, replayed

Rows = NDArray[np.signedinteger[Any]] | slice


@dataclass(frozen=True)
class DecisionArrays:
    """What a person has decided, by training row.

    Attributes:
        rows: Samples with a decision, ascending, (m,).
        membership: Their classes, (m, K): 1 the sample has it, 0 it does not, nan where that is not decided.
            Single-label: the last column is "none of these", K = C + 1.
        dropped: Samples that leave the dataset, (n,): they show none of the classes, or are near duplicates.
        anchors: Samples picked as anchors of their class, (n,).
        random: Whether each sample with a decision was drawn at random, (m,).
    """

    rows: NDArray[np.int64]
    membership: NDArray[np.float32]
    dropped: NDArray[np.bool_]
    anchors: NDArray[np.bool_]
    random: NDArray[np.bool_]

    def known(self, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """Membership of any samples, (b, K), nan where it is not decided."""
        asked = np.arange(len(self.dropped))[rows]
        known = np.full((len(asked), self.membership.shape[1]), np.nan, dtype=np.float32)
        here = np.flatnonzero(np.isin(asked, self.rows))
        known[here] = self.membership[np.searchsorted(self.rows, asked[here])]
        return known

    @property
    def about_content(self) -> NDArray[np.bool_]:
        """Samples of which it is decided what they show, be it none of the classes, (n,)."""
        mask = np.zeros(len(self.dropped), dtype=bool)
        mask[self.rows] = ~np.isnan(self.membership).all(axis=1)
        return mask

    @property
    def decided(self) -> NDArray[np.bool_]:
        """Samples of which anything is decided, (n,)."""
        return self.dropped | self.about_content

    @property
    def decided_pairs(self) -> NDArray[np.bool_]:
        """Multi-label: pairs of sample and class that are decided, (n, C)."""
        return self.dropped[:, None] | ~np.isnan(self.known())

    def labels(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels with the decisions in their place, in the same shape; -1 is dropped."""
        changed = np.array(labels)
        if kind_of(changed).multi_label:
            known = ~np.isnan(self.membership)
            back = self.rows[known.any(axis=1)]  # one that the method dropped returns with its decided labels
            changed[back] = np.maximum(changed[back], 0)
            changed[self.rows] = np.where(known, self.membership > 0.5, changed[self.rows])
        else:
            has = (self.membership > 0.5).any(axis=1)
            changed[self.rows[has]] = self.membership[has].argmax(axis=1)
        changed[self.dropped] = NO_CLASS
        return changed


def resolve(
    decisions: Mapping[str, Decision], ids: Sequence[str], classes: Sequence[str], *, multi_label: bool
) -> DecisionArrays:
    """Decisions as arrays; samples that are no longer there are left out, an unknown class is refused.

    >>> decisions = {"a": Decision("a", "labels", yes=("cat",)), "b": Decision("b", "out")}
    >>> arrays = resolve(decisions, ["a", "b", "c"], ["cat", "dog"], multi_label=False)
    >>> arrays.known()[0].tolist(), arrays.dropped.tolist(), arrays.labels(np.array([1, 0, 1])).tolist()
    ([1.0, 0.0, 0.0], [False, True, False], [0, -1, 1])
    """
    number_of = {name: number for number, name in enumerate(classes)}
    rows = [row for row, sample in enumerate(ids) if sample in decisions and decisions[sample].kind.decides]
    states = (MULTI_LABEL if multi_label else SINGLE_LABEL).states(len(classes))
    membership = np.full((len(rows), states), np.nan, dtype=np.float32)
    dropped, anchors = (np.zeros(len(ids), dtype=bool) for _ in range(2))
    for index, row in enumerate(rows):
        decision = decisions[ids[row]]
        for name in (*decision.yes, *decision.no):
            if name not in number_of:
                raise DataError(
                    f"a person decided on {decision.sample!r}, and {name!r} is no class of this run",
                    hint="decide on the sample again with `capro review`, or bring the class back into data.classes; "
                    + did_you_mean(name, classes),
                )
        if decision.kind.drops:
            dropped[row] = True
            if decision.kind.about_content:
                membership[index] = 0.0
                membership[index, len(classes) :] = 1.0  # none of these
            continue
        if decision.whole and (multi_label or decision.yes):
            membership[index] = 0.0
        membership[index, [number_of[name] for name in decision.no]] = 0.0
        membership[index, [number_of[name] for name in decision.yes]] = 1.0
        anchors[row] = decision.anchor
    random = np.array([decisions[ids[row]].random for row in rows], dtype=bool)
    return DecisionArrays(np.array(rows, dtype=np.int64), membership, dropped, anchors, random)


def _deciding(run: Run) -> dict[str, Decision]:
    """The decisions that the method has to follow, by sample."""
    replay = replayed(run)
    results = [run.finished(stage) or {} for stage in (ANCHORS.stage, CLEANED_LABELS.stage)]
    if not replay.last and log_file(run).exists() and any(result.get("decisions") for result in results):
        raise RunError(
            f"{log_file(run)}: the log of decisions is empty, and there are results that took decisions in",
            hint="put a copy of the file back; to go on without decisions, remove it",
        )
    return {sample: decision for sample, decision in replay.decided().items() if decision.kind.decides}


def decision_arrays(
    run: Run, ids: Sequence[str], classes: Sequence[str], *, multi_label: bool
) -> DecisionArrays | None:
    """What a person has decided in a run; None without any decision."""
    decisions = _deciding(run)
    return resolve(decisions, ids, classes, multi_label=multi_label) if decisions else None


def decisions_hash(run: Run) -> str:
    """A hash of all decisions, by which stages know them; empty without any."""
    decisions = _deciding(run)
    if not decisions:
        return ""
    rows = sorted(
        (sample, each.answer, sorted(each.yes), sorted(each.no), each.whole, each.anchor, each.random)
        for sample, each in decisions.items()
    )
    return fingerprint(rows)
