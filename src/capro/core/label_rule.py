"""What becomes of a web label: kept, corrected or dropped. Pure.

The paper's rule looks at the fused score (Eq. 6 and 7); the method plus at the posterior of the true label,
which also says which samples a person should look at and which classes have something wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

NULL = -1
CLASSES_AT_ONCE = 1024  # that are compared with all others


class LabelDecision(IntEnum):
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
        Labels (b,) int64 with -1 for Null, and a `LabelDecision` per sample, (b,) int64. A label that
        the second case confirms counts as KEEP.

    >>> o = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.2, 0.8]])
    >>> labels, decisions = adjust(
    ...     o, torch.tensor([0, 1, 0]), torch.tensor([False, False, True]), gamma=0.7)
    >>> labels.tolist(), [LabelDecision(int(d)).name for d in decisions]
    ([1, -1, 0], ['RELABEL', 'DROP', 'ANCHOR'])
    """
    best, top = o.max(dim=1)
    score = o.gather(1, y.clamp(min=0)[:, None])[:, 0]  # o_y
    labelled = y >= 0
    top = torch.where(labelled & (score == best), y, top)
    confident = best > gamma
    plausible = labelled & (score > 1 / o.shape[1])
    labels = torch.where(confident, top, torch.where(plausible, y, NULL))
    decisions = torch.where(labels == y, int(LabelDecision.KEEP), int(LabelDecision.RELABEL))
    decisions = torch.where(labels == NULL, int(LabelDecision.DROP), decisions)
    if protect_anchors:
        labels = torch.where(is_anchor, y, labels)
        decisions = torch.where(is_anchor, int(LabelDecision.ANCHOR), decisions)
    return labels, decisions


def adjust_multi_label(
    o: Tensor, y: Tensor, anchored: Tensor, *, gamma: float, protect_anchors: bool = True
) -> tuple[Tensor, Tensor]:
    """The label rule per class (docs/paper.md).

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

    >>> labels, decisions = adjust_multi_label(torch.tensor([[0.95, 0.5, 0.01]]),
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


# --- the posterior decides (method plus) ----------------------------------------------------------


class CorrectedLabels(NamedTuple):
    """Corrected labels and what was done, in the shape of the labels; and where a person should be asked."""

    labels: Tensor  # -1 for out
    decisions: Tensor  # numbers of `LabelDecision`, multi-label of `PairDecision`
    ask: Tensor  # bool


def decide(
    q: Tensor, y: Tensor, anchors: Tensor, *, sure: float = 0.5, drop_above: float = 0.5
) -> CorrectedLabels:
    """Keep, relabel or drop by the posterior of the method plus, single-label; and whether to ask.

    None of these drops where it is more probable than every class, or more than that by `drop_above`. Another class
    relabels if it has more than `sure`; below that the given label stands until a person has been asked (the best
    class, where none was given). An anchor that loses its label is an anchor no more.

    Args:
        q: (n, C + 1).
        y: web labels, (n,), -1 for none.
        anchors: (n,) bool.
        sure: a decision that is not asked has more than this.
        drop_above: q(none) / (q(none) + q(best class)) above which a sample is dropped.

    >>> q = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
    >>> corrected = decide(q, torch.zeros(4, dtype=torch.int64), torch.tensor([True, True, False, False]))
    >>> corrected.labels.tolist(), [LabelDecision(d).name for d in corrected.decisions.tolist()]
    ([0, 1, -1, 0], ['ANCHOR', 'RELABEL', 'DROP', 'KEEP'])
    >>> corrected.ask.tolist()
    [False, False, False, True]
    """
    C = q.shape[1] - 1
    p, best = q[:, :C].max(1)
    drop = dropped_at(q[:, C], p, drop_above)
    labels = torch.where((p <= sure) & (y >= 0), y, best)
    labels = torch.where(drop, NULL, labels)
    decisions = torch.where(labels == y, int(LabelDecision.KEEP), int(LabelDecision.RELABEL))
    decisions = torch.where((labels == y) & anchors, int(LabelDecision.ANCHOR), decisions)
    decisions = torch.where(drop, int(LabelDecision.DROP), decisions)
    return CorrectedLabels(labels, decisions, q.max(1)[0] <= sure)


def dropped_at(none: Any, best: Any, drop_above: float) -> Any:
    """Which samples are dropped, by the probability of none of these and of the best class, (n,) -> (n,) bool.

    >>> dropped_at(torch.tensor([0.4, 0.6]), torch.tensor([0.5, 0.4]), 0.5).tolist()
    [False, True]
    """
    return none * (1 - drop_above) > best * drop_above


def decide_multi_label(q: Tensor, y: Tensor, *, doubtful: float = 0.1) -> CorrectedLabels:
    """Keep, add or remove for every (sample, class) by the posterior; asked is where q is near one half.

    A sample that had labels and lost them all is out, as in `adjust_multi_label`.

    Args:
        q: (n, C).
        y: given labels in {0, 1}, (n, C).
        doubtful: distance from one half.

    >>> corrected = decide_multi_label(torch.tensor([[0.9, 0.2, 0.45]]), torch.tensor([[0, 0, 1]]))
    >>> corrected.labels.tolist(), [PairDecision(d).name for d in corrected.decisions[0].tolist()]
    ([[1, 0, 0]], ['ADD', 'KEEP', 'REMOVE'])
    >>> corrected.ask.tolist()
    [[False, False, True]]
    """
    labels = (q > 0.5).long()
    decisions = torch.where(labels > y, int(PairDecision.ADD), int(PairDecision.KEEP))
    decisions = torch.where(labels < y, int(PairDecision.REMOVE), decisions)
    out = (y > 0).any(1) & ~(labels > 0).any(1)
    return CorrectedLabels(torch.where(out[:, None], NULL, labels), decisions, (q - 0.5).abs() < doubtful)


class ClassFinding(NamedTuple):
    """Something is wrong with a class."""

    kind: str  # "anchors", "one class", "sense"
    classes: tuple[int, ...]
    share: float  # what the kind measures, see `diagnose`
    rows: tuple[int, ...]  # samples that show it, the clearest first


def diagnose(
    q: Tensor,
    y: Tensor,
    texts: Sequence[Tensor],
    class_texts: Tensor,
    *,
    anchors: Tensor | None = None,
    shown: int = 9,
) -> list[ClassFinding]:
    """Which classes have something wrong, single-label, by the posterior q, (n, C + 1), and the samples to show.

    Kinds: "anchors", most anchors of a class end elsewhere (share of them); "one class", pictures and
    texts cannot tell two classes apart (posterior mass they exchange, of the smaller one's); "sense",
    no text of the class's samples is nearest to its class text more often than by chance (share).
    """
    C = q.shape[1] - 1
    out, best = [], q.argmax(1)
    nearest = sum((t @ class_texts.T for t in texts), torch.zeros(len(y), C)).argmax(1)
    has_text = torch.zeros(len(y), dtype=torch.bool)
    for t in texts:
        has_text |= t.any(1)
    for c in range(C):
        mine = torch.zeros_like(has_text) if anchors is None else anchors & (y == c)
        away = mine & (best != c)
        if mine.any() and (share := float(away.sum() / mine.sum())) > 0.5:
            out.append(ClassFinding("anchors", (c,), share, _clearest(away, q[:, c], shown)))
        read = (y == c) & has_text
        if read.any() and (share := float((nearest[read] == c).float().mean())) < 1 / C:
            own = sum((t @ class_texts[c] for t in texts), torch.zeros(len(y)))
            out.append(ClassFinding("sense", (c,), share, _clearest(read, own, shown)))
    classes = q[:, :C]
    size = classes.sum(0).clamp(min=1e-6)
    for begin in range(0, C, CLASSES_AT_ONCE):
        some = slice(begin, begin + CLASSES_AT_ONCE)
        overlap = classes[:, some].T @ classes  # (c, C): mass that two classes share on the same samples
        # two equal classes share half of the smaller one's mass on every sample
        exchanged = overlap.div_(torch.minimum(size[some, None], size[None])).triu_(1 + begin)
        for row, b in (exchanged > 0.25).nonzero().tolist():
            a = begin + row
            both = classes[:, a] * classes[:, b]
            shows = _clearest(both > 0, -both, shown)
            out.append(ClassFinding("one class", (a, b), float(exchanged[row, b]), shows))
    return out


def _clearest(mask: Tensor, score: Tensor, shown: int) -> tuple[int, ...]:
    """Rows of the mask with the lowest scores."""
    rows = mask.nonzero()[:, 0]
    return tuple(rows[score[rows].argsort(stable=True)][:shown].tolist())
