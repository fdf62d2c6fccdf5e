"""What a person has decided, as the stages take it (docs/review.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.core.kept_scores import CLASS
from capro.core.label_rule import LabelDecision, PairDecision
from capro.errors import DataError
from capro.pipeline.run import Run
from capro.review.decisions import Fixed, fixed_of
from capro.train.judgement import Judged
from capro.train.setup import TrainingSet


def decided_of(run: Run, training: TrainingSet) -> Fixed | None:
    """The decisions of a run by training row; None without any."""
    return fixed_of(run, training.row_ids, training.classes, several=training.multi_label)


class Settled(NamedTuple):
    """The training set of step 2 with what a person decided.

    Attributes:
        training: Its rows.
        anchored: Which of them are anchors, (m,) or (m, C).
        rows: Their numbers among all training rows, (m,).
    """

    training: TrainingSet
    anchored: Tensor
    rows: NDArray[np.int64]


def settled_set(run: Run, training: TrainingSet, anchored: Tensor) -> Settled:
    """CAPro as published: decided labels stand in the place of web labels and are anchors; what is out is not there."""
    fixed = decided_of(run, training)
    if fixed is None:
        return Settled(training, anchored, np.arange(len(training.positions)))
    rows = np.flatnonzero(~fixed.out)
    if not len(rows):
        raise DataError("people dropped every training sample", hint="undo decisions in `capro review`")
    web = training.labels.cpu().numpy()
    labels = torch.from_numpy(fixed.labels(web)[rows]).to(training.labels.device)
    mine = np.zeros(web.shape, dtype=bool)
    mine[fixed.at] = fixed.said > 0.5 if training.multi_label else (fixed.said > 0.5).any(axis=1)
    own = torch.from_numpy(mine[rows]).to(anchored.device)
    left = replace(training, positions=training.positions[rows], labels=labels)
    return Settled(left, anchored[torch.from_numpy(rows).to(anchored.device)] | own, rows)


def with_decisions(judged: Judged, fixed: Fixed | None, given: np.ndarray, anchored: np.ndarray) -> Judged:
    """The judgement with what a person decided in its place; scores of the words too (several labels)."""
    if fixed is None:
        return judged
    labels = fixed.labels(judged.labels)
    rows, decisions = fixed.rows, np.array(judged.decisions)
    if given.ndim == 2:
        known = fixed.known()
        settled = ~np.isnan(known)
        after = labels > 0
        pairs = np.select(
            [after & (given <= 0), ~after & (given > 0)],
            [PairDecision.ADD, PairDecision.REMOVE],
            PairDecision.KEEP,
        )
        changed = settled | fixed.out[:, None]
        decisions = np.where(changed, pairs, decisions)
        scores = np.array(judged.scores)
        if "text" in (scores.dtype.names or ()):
            said = np.take_along_axis(known, scores[CLASS].astype(np.int64), 1)
            scores["text"] = np.where(np.isnan(said), scores["text"], said)
        ask = None if judged.ask is None else judged.ask & ~changed
        return replace(judged, labels=labels, decisions=decisions, scores=scores, ask=ask)
    kept = np.where(anchored, LabelDecision.ANCHOR, LabelDecision.KEEP)
    made = np.where(labels < 0, LabelDecision.DROP, np.where(labels == given, kept, LabelDecision.RELABEL))
    ask = None if judged.ask is None else judged.ask & ~rows
    return replace(judged, labels=labels, decisions=np.where(rows, made, decisions), ask=ask)
