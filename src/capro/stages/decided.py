"""What people have decided, as the stages take it (docs/review.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from capro.core.evidence import Settled
from capro.core.kept_scores import CLASS
from capro.core.label_rule import LabelDecision, PairDecision
from capro.data.labels import kind_of
from capro.errors import DataError
from capro.pipeline.run import Run
from capro.review.decisions import DecisionArrays, decision_arrays
from capro.train.judgement import Judged
from capro.train.setup import TrainingSet


def decided_of(run: Run, training: TrainingSet) -> DecisionArrays | None:
    """The decisions of a run by training row; None without any."""
    return decision_arrays(run, training.row_ids, training.classes, multi_label=training.multi_label)


def settled_by_people(run: Run, training: TrainingSet) -> Settled | None:
    """What people have settled of training rows, as the posterior takes it; None without any decision."""
    decisions = decided_of(run, training)
    if decisions is None:
        return None
    rows = np.flatnonzero(decisions.about_content)
    random = decisions.random[np.isin(decisions.rows, rows)]
    return Settled(torch.from_numpy(rows), torch.from_numpy(decisions.known(rows)), torch.from_numpy(random))


def decided_set(run: Run, training: TrainingSet, anchored: Tensor) -> tuple[TrainingSet, Tensor]:
    """CAPro as published: decided labels stand in the place of web labels and are anchors; what is out is not there.

    Returns:
        The training set of step 2, and which of its rows are anchors, (m,) or (m, C).
    """
    decisions = decided_of(run, training)
    if decisions is None:
        return training, anchored
    rows = np.flatnonzero(~decisions.dropped)
    if not len(rows):
        raise DataError("people dropped every training sample", hint="undo decisions in `capro review`")
    web = training.labels.cpu().numpy()
    labels = torch.from_numpy(decisions.labels(web)[rows]).to(training.labels.device)
    mine = np.zeros(web.shape, dtype=bool)
    yes = decisions.membership > 0.5
    mine[decisions.rows] = yes if training.multi_label else yes.any(axis=1)
    own = torch.from_numpy(mine[rows]).to(anchored.device)
    left = replace(training, positions=training.positions[rows], labels=labels)
    return left, anchored[torch.from_numpy(rows).to(anchored.device)] | own


def with_decisions(
    judged: Judged, person: DecisionArrays | None, given: np.ndarray, anchored: np.ndarray
) -> Judged:
    """The judgement with a person's decisions in its place; multi-label: also in the scores of the words."""
    if person is None:
        return judged
    labels = person.labels(judged.labels)
    rows, decisions = person.decided, np.array(judged.decisions)
    if kind_of(given).multi_label:
        known = person.known()
        after = labels > 0
        pairs = np.select(
            [after & (given <= 0), ~after & (given > 0)],
            [PairDecision.ADD, PairDecision.REMOVE],
            PairDecision.KEEP,
        )
        changed = ~np.isnan(known) | person.dropped[:, None]
        decisions = np.where(changed, pairs, decisions)
        scores = np.array(judged.scores)
        if "text" in (scores.dtype.names or ()):
            decided = np.take_along_axis(known, scores[CLASS].astype(np.int64), 1)
            scores["text"] = np.where(np.isnan(decided), scores["text"], decided)
        ask = None if judged.ask is None else judged.ask & ~changed
        return replace(judged, labels=labels, decisions=decisions, scores=scores, ask=ask)
    kept = np.where(anchored, LabelDecision.ANCHOR, LabelDecision.KEEP)
    made = np.where(labels < 0, LabelDecision.DROP, np.where(labels == given, kept, LabelDecision.RELABEL))
    ask = None if judged.ask is None else judged.ask & ~rows
    return replace(judged, labels=labels, decisions=np.where(rows, made, decisions), ask=ask)
