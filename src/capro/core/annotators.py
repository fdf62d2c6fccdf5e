"""Annotators: whoever answers which class a sample shows, and how far each can be trusted. Pure.

Today there is one, the web label. A dictionary that finds class names in texts, a reviewer or a model is one more
column of answers with a reliability of its own. An annotator is a table of rates: `evidence` turns answers into what
they say of the true class, `fitted` counts the rates anew from the posterior, once in each round of EM. Silence says
nothing.

Single-label: an answer is a class number, (n,), -1 for silence, and its evidence log P(answer | z), (n, C + 1).
Multi-label: an answer is yes or no for each class, (n, C) in {0, 1}, -1 for silence, and its evidence log-odds, (n, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from capro.core.linear import TINY

LABEL_TRUST = 12.0  # pseudo-counts for P(y = z | z)
LABEL_SPREAD = 5.0  # pseudo-counts over all y
LOW = 1e-4


class Annotator(Protocol):
    """How reliable an annotator is."""

    def fitted(self, q: Tensor, answers: Tensor) -> Annotator:
        """The annotator with rates counted from a posterior, (n, K), and its answers."""

    def evidence(self, answers: Tensor) -> Tensor:
        """What answers say of the true class, (n, K); zeros for silence."""


@dataclass(frozen=True)
class LabelTable:
    """Single-label: P(y | z), (C + 1, A), by counts for the answers that occur and pseudo-counts for all.

        P(y | z) = (n_zy + spread f_y + trust [y = z]) / (n_z + spread + trust [z < A])

    The web label is trusted beforehand, and all of its A = C answers are alike (f = 1 / C). Of the dictionary nothing
    is known beforehand: no trust, and f is how often an answer is given, so that an answer means nothing until the
    posterior says so. Only answers that occur have a row of counts: with 10,000 classes the whole table would have
    400 MB.
    """

    counts: Tensor  # n_zy of the u answers that occur, (u + 1, C + 1); the last row is zero
    row: Tensor  # of each answer in counts, (A,)
    frequency: Tensor  # f, (A,)
    spread: float
    trust: float

    @classmethod
    def even(cls, classes: int, right: float = 0.6) -> Self:
        """P(y = z) = right, other labels alike; none of these has every label alike."""
        spread = (1 - right) * classes / max(1, classes - 1)
        return cls._uncounted(classes, torch.full((classes,), 1 / classes), spread, 1 - spread)

    @classmethod
    def silent(cls, classes: int, answers: Tensor) -> Self:
        """A table that says nothing yet, of an annotator with answers, (n,), from 0 to C, none of these."""
        frequency = torch.bincount(answers[answers >= 0], minlength=classes + 1) + 1.0
        return cls._uncounted(classes, frequency / frequency.sum(), LABEL_SPREAD, 0.0)

    @classmethod
    def _uncounted(cls, classes: int, frequency: Tensor, spread: float, trust: float) -> Self:
        row = torch.zeros(len(frequency), dtype=torch.int64)
        return cls(torch.zeros(1, classes + 1), row, frequency, spread, trust)

    def fitted(self, q: Tensor, answers: Tensor) -> LabelTable:
        """Counted from the posterior, (n, C + 1), and answers, (n,)."""
        has = answers >= 0
        occur = torch.bincount(answers[has], minlength=len(self.row)).nonzero()[:, 0]
        row = torch.full((len(self.row),), len(occur))
        row[occur] = torch.arange(len(occur))
        counts = torch.zeros(len(occur) + 1, q.shape[1]).index_add_(0, row[answers[has]], q[has])
        return LabelTable(counts, row, self.frequency, LABEL_SPREAD, LABEL_TRUST if self.trust else 0.0)

    def evidence(self, answers: Tensor) -> Tensor:
        """Log-likelihood P(y | z) of answers, (n,) -> (n, C + 1)."""
        has, given = answers >= 0, answers.clamp(min=0)
        size = self.counts.sum(0) + self.spread
        likelihood = self.counts[self.row[given]]
        likelihood += self.spread * self.frequency[given][:, None]
        if self.trust:
            size[: len(self.row)] += self.trust
            likelihood[has.nonzero()[:, 0], answers[has]] += self.trust
        return likelihood.div_(size).clamp_(min=TINY).log_().mul_(has[:, None])


class SharedLabelTable(LabelTable):
    """P(y | z) by one number, how often a label is right: what few samples of each class can tell."""

    def fitted(self, q: Tensor, answers: Tensor) -> SharedLabelTable:
        return SharedLabelTable.even(len(self.row), right_labels(q, answers))


def right_labels(q: Tensor, y: Tensor) -> float:
    """How often the label of a sample of some class is right, by the posterior; pseudo-counts as of one class.

    >>> round(right_labels(torch.tensor([[1.0, 0.0, 0.0]]).repeat(1000, 1), torch.arange(1000) % 2), 1)
    0.5
    """
    rows = (y >= 0).nonzero()[:, 0]
    right, some = q[rows, y[rows]].sum(), q[rows, :-1].sum()
    return float((right + LABEL_TRUST) / (some + LABEL_TRUST + LABEL_SPREAD))


@dataclass(frozen=True)
class TagRates:
    """Multi-label: how often a tag is given where its class is shown, and where it is not, (C,) each.

    >>> tags = TagRates.even(1).fitted(torch.tensor([[1.0], [0.0]]).repeat(5000, 1), torch.ones(10000, 1))
    >>> round(float(tags.hit), 2), round(float(tags.false), 2)
    (0.99, 0.6)
    """

    hit: Tensor
    false: Tensor

    @classmethod
    def even(cls, classes: int) -> TagRates:
        """Before the first round."""
        return cls(torch.full((classes,), 0.6), torch.full((classes,), 0.04))

    def fitted(self, q: Tensor, answers: Tensor) -> TagRates:
        """Counted from the posterior, (n, C), and tags, (n, C)."""
        answered, y = (answers >= 0).float(), answers.clamp(min=0).float()
        shown, absent = answered * q, answered * (1 - q)
        hit = ((shown * y).sum(0) + 3) / (shown.sum(0) + 5)
        false = ((absent * y).sum(0) + 0.05) / (absent.sum(0) + 5)
        return TagRates(hit.clamp(0.05, 0.99), false.clamp(LOW, 0.6))

    def evidence(self, answers: Tensor) -> Tensor:
        """Log-odds that a tag, or its absence, adds for its class, (n, C) -> (n, C)."""
        y = answers.float()
        yes, no = (self.hit / self.false).log(), ((1 - self.hit) / (1 - self.false)).log()
        return torch.where(answers < 0, 0.0, y * yes + (1 - y) * no)
