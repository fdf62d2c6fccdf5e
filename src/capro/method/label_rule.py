"""The fused score and the rule that keeps, corrects or drops a web label (Eq. 6 and 7).

All O(b C). A label of -1 means Null: the sample is out.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

NULL = -1
TINY = 1e-12  # a belief of 0 has no logarithm


class Decision(IntEnum):
    """What the rule did with a sample's web label."""

    ANCHOR = 0  # kept without looking: the sample is in D_K
    KEEP = 1
    RELABEL = 2
    DROP = 3


class PairDecision(IntEnum):
    """What the multi-label rule did with one (sample, class) pair."""

    KEEP = 0
    ADD = 1
    REMOVE = 2


def fused_score(p: Tensor, r: Tensor, *, alpha: float) -> Tensor:
    """Fuse two beliefs, o = alpha p + (1 - alpha) r, Eq. 6; all are probabilities, (b, C).

    >>> fused_score(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]), alpha=0.5)
    tensor([[0.7500, 0.2500]])
    """
    return alpha * p + (1 - alpha) * r


def with_text(o: Tensor, t: Tensor, *, weight: float) -> Tensor:
    """Count the text too: o' proportional to o t^weight, normalised (ours, one label only).

    Eq. 6 is a mean of two beliefs that come from the same picture. The text is evidence of its own, so its
    belief multiplies: a class that one of both excludes is excluded.

    Args:
        o: fused score, (b, C).
        t: probabilities by the text, (b, C), `capro.method.text_evidence`; a row of zeros, no text, leaves o.
        weight: 0 gives o.

    >>> with_text(torch.tensor([[0.5, 0.5], [0.7, 0.3]]), torch.tensor([[0.8, 0.2], [0.0, 0.0]]), weight=1)
    tensor([[0.8000, 0.2000],
            [0.7000, 0.3000]])
    """
    joint = o.clamp_min(TINY).log() + weight * t.clamp_min(TINY).log()
    return torch.where(t.any(dim=1, keepdim=True), joint.softmax(dim=1), o)


def adjust(
    o: Tensor, y: Tensor, is_anchor: Tensor, *, gamma: float, protect_anchors: bool = True
) -> tuple[Tensor, Tensor]:
    """The label rule, Eq. 7, its cases in the equation's order and with strict inequalities.

    An anchor keeps y; else max o > gamma gives argmax o; else o_y > 1/C keeps y; else Null. Where
    several classes share the maximum, the web label wins if it is among them, then the lowest
    index: a draw is no reason to change a label.

    Args:
        o: fused score, (b, C).
        y: web labels, (b,) int64; < 0 is a sample without one, which only a score above gamma
            can bring in.
        is_anchor: membership of D_K, (b,) bool.
        gamma: threshold.
        protect_anchors: the first case; without it this is the `mopro` policy.

    Returns:
        Labels (b,) int64 with -1 for Null, and a `Decision` per sample, (b,) int64. A label that
        the second case confirms counts as KEEP.

    >>> o = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.2, 0.8]])
    >>> labels, decisions = adjust(
    ...     o, torch.tensor([0, 1, 0]), torch.tensor([False, False, True]), gamma=0.7)
    >>> labels.tolist(), [Decision(int(d)).name for d in decisions]
    ([1, -1, 0], ['RELABEL', 'DROP', 'ANCHOR'])
    """
    best, top = o.max(dim=1)
    score = o.gather(1, y.clamp(min=0)[:, None])[:, 0]  # o_y
    labelled = y >= 0
    top = torch.where(labelled & (score == best), y, top)
    confident = best > gamma
    plausible = labelled & (score > 1 / o.shape[1])
    labels = torch.where(confident, top, torch.where(plausible, y, NULL))
    decisions = torch.where(labels == y, int(Decision.KEEP), int(Decision.RELABEL))
    decisions = torch.where(labels == NULL, int(Decision.DROP), decisions)
    if protect_anchors:
        labels = torch.where(is_anchor, y, labels)
        decisions = torch.where(is_anchor, int(Decision.ANCHOR), decisions)
    return labels, decisions


def adjust_binary(
    o: Tensor, y: Tensor, anchored: Tensor, *, gamma: float, protect_anchors: bool = True
) -> tuple[Tensor, Tensor]:
    """The label rule per class (method.md, Multi-label).

    Positive if o > gamma, else negative if 1 - o > gamma, else the web label stays; anchors of c
    keep label c. A sample that had labels and lost them all is out.

    Args:
        o: fused score per class, (b, C).
        y: web labels in {0, 1}, (b, C).
        anchored: whether the sample is an anchor of the class, (b, C) bool.
        gamma: threshold; below one half both sides could hold, and positive wins.
        protect_anchors: False is the `mopro` policy.

    Returns:
        Labels (b, C) int64 in {0, 1}, with the whole row -1 where the sample is out, and a
        `PairDecision` per pair, (b, C) int64. A sample without any web label is not out: it is a
        negative of every class.

    >>> labels, decisions = adjust_binary(torch.tensor([[0.95, 0.5, 0.01]]),
    ...     torch.tensor([[0, 1, 1]]), torch.zeros(1, 3, dtype=torch.bool), gamma=0.9)
    >>> labels.tolist(), [PairDecision(int(d)).name for d in decisions[0]]
    ([[1, 1, 0]], ['ADD', 'KEEP', 'REMOVE'])
    """
    y = y.long()
    labels = torch.where(o > gamma, 1, torch.where(1 - o > gamma, 0, y))
    if protect_anchors:
        labels = torch.where(anchored, y, labels)
    decisions = torch.where(labels > y, int(PairDecision.ADD), int(PairDecision.KEEP))
    decisions = torch.where(labels < y, int(PairDecision.REMOVE), decisions)
    out = (y == 1).any(dim=1) & ~(labels == 1).any(dim=1)
    return torch.where(out[:, None], NULL, labels), decisions
