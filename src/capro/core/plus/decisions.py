"""What follows from a posterior: labels, questions for a person, classes with something wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capro.core.label_rule import NULL, LabelDecision, PairDecision
from capro.core.plus.fitting import TINY

CLASSES_AT_ONCE = 1024  # that are compared with all others


class Decided(NamedTuple):
    """Corrected labels and what was done, in the shape of the labels; and where a person should be asked."""

    labels: Tensor  # -1 for out
    decisions: Tensor  # numbers of `LabelDecision`, or of `PairDecision` for several labels
    ask: Tensor  # bool


def decide(q: Tensor, y: Tensor, anchors: Tensor, *, sure: float = 0.5) -> Decided:
    """Keep, relabel or drop, one label; and whether to ask.

    The most probable state decides: none of these drops, another class relabels. Where it has no more than `sure`,
    the best class stands until a person has been asked. An anchor that loses its label is an anchor no more.

    Args:
        q: (n, C + 1).
        y: web labels, (n,), -1 for none.
        anchors: (n,) bool.
        sure: a decision has more than this.

    >>> q = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])
    >>> found = decide(q, torch.zeros(4, dtype=torch.int64), torch.tensor([True, True, False, False]))
    >>> found.labels.tolist(), [LabelDecision(d).name for d in found.decisions.tolist()], found.ask.tolist()
    ([0, 1, -1, 0], ['ANCHOR', 'RELABEL', 'DROP', 'KEEP'], [False, False, False, True])
    """
    C = q.shape[1] - 1
    top, best = q.max(1)
    ask = top <= sure
    labels = torch.where(ask, q[:, :C].argmax(1), torch.where(best < C, best, NULL))
    decisions = torch.where(labels == y, int(LabelDecision.KEEP), int(LabelDecision.RELABEL))
    decisions = torch.where((labels == y) & anchors, int(LabelDecision.ANCHOR), decisions)
    return Decided(labels, torch.where(labels == NULL, int(LabelDecision.DROP), decisions), ask)


def decide_pairs(q: Tensor, y: Tensor, *, doubtful: float = 0.1) -> Decided:
    """Keep, add or remove for every (sample, class); asked is where q is within `doubtful` of one half.

    A sample that had labels and lost them all is out, as in `label_rule.adjust_binary`.

    Args:
        q: (n, C).
        y: given labels in {0, 1}, (n, C).
        doubtful: distance from one half.

    >>> found = decide_pairs(torch.tensor([[0.9, 0.2, 0.45]]), torch.tensor([[0, 0, 1]]))
    >>> found.labels.tolist(), [PairDecision(d).name for d in found.decisions[0].tolist()], found.ask.tolist()
    ([[1, 0, 0]], ['ADD', 'KEEP', 'REMOVE'], [[False, False, True]])
    """
    labels = (q > 0.5).long()
    decisions = torch.where(labels > y, int(PairDecision.ADD), int(PairDecision.KEEP))
    decisions = torch.where(labels < y, int(PairDecision.REMOVE), decisions)
    out = (y > 0).any(1) & ~(labels > 0).any(1)
    return Decided(torch.where(out[:, None], NULL, labels), decisions, (q - 0.5).abs() < doubtful)


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
    """Which classes have something wrong, one label, by the posterior q, (n, C + 1); the rows are the samples to show.

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
    size = classes.sum(0).clamp(min=TINY)
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
