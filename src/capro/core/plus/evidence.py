"""How label, words and picture become evidence, and how it is joined. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

from capro.core.plus.fitting import TINY, minimise

LABEL_TRUST = 12.0  # pseudo-counts for P(y = z | z)
LABEL_SPREAD = 5.0  # pseudo-counts over all y
LOW = 1e-4


class LabelTable(NamedTuple):
    """P(y | z), (C + 1, C): counts for the labels that occur, pseudo-counts for all.

        P(y | z) = (n_zy + spread / C + trust [y = z]) / (n_z + spread + trust [z < C])

    Only labels that occur have a row of counts: with 10,000 classes the whole table would have 400 MB.
    """

    counts: Tensor  # n_zy of the u labels that occur, (u + 1, C + 1); the last row is zero
    row: Tensor  # of each label in counts, (C,)
    spread: float
    trust: float

    @classmethod
    def even(cls, classes: int, right: float = 0.6) -> LabelTable:
        """P(y = z) = right, other labels alike; none of these has every label alike."""
        spread = (1 - right) * classes / max(1, classes - 1)
        return cls(torch.zeros(1, classes + 1), torch.zeros(classes, dtype=torch.int64), spread, 1 - spread)

    def evidence(self, y: Tensor) -> Tensor:
        """Log-likelihood P(y | z) of labels, (n,) -> (n, C + 1); zeros without a label (-1)."""
        classes, has = len(self.row), y >= 0
        size = self.counts.sum(0) + self.spread
        size[:classes] += self.trust
        found = self.counts[self.row[y.clamp(min=0)]]
        found += self.spread / classes
        found[has.nonzero()[:, 0], y[has]] += self.trust
        return found.div_(size).clamp_(min=TINY).log_().mul_(has[:, None])


class Beliefs(NamedTuple):
    """Posterior of some samples, and what each view says; shapes and meaning as in `Posterior`."""

    q: Tensor
    words: Tensor
    picture: Tensor


@dataclass(frozen=True)
class Posterior:
    """What is known of the truth after EM.

    Attributes:
        q: calibrated posterior, (n, C + 1) with none of these last; several labels: (n, C).
        words: log P(z | words) of the last round, (n, C + 1), or its log-odds, (n, C).
        picture: log P(z | picture), out of fold, or its log-odds beyond the prior.
        prior: pi, (C + 1,) or (C,).
        reliability: P(y | z); several labels: hit and false rates, (2, C).
        label_weight: w of the web label; several labels: 1.
        field_weights: a_f of the fields, in order; several labels: (f, 1 or 2) with class names.
        of: (x, texts, y, joint=, known=) of samples that the fit has not seen -> `Beliefs`; pictures and the
            correction of the texts are read with the mean of the folds' classifiers.
        several: whether samples have several labels.
        zero_shot_weight: scale of the image-text model's likeness of picture and class, in logits per standard
            deviation; None without such a model.
        fit_weights: of each field, how much more a text counts that fits its picture (`joint.counted`), (f,).
    """

    q: Tensor
    words: Tensor
    picture: Tensor
    prior: Tensor
    reliability: LabelTable | Tensor
    label_weight: float
    field_weights: Tensor
    of: Callable[..., Beliefs]
    several: bool = False
    zero_shot_weight: float | None = None
    fit_weights: Tensor | None = None


def state_prior(q: Tensor) -> Tensor:
    """Share of each state, (K,), with one pseudo-count each: a state that nobody is in does not become a
    certain surprise, whose least evidence would count more than everything else.

    >>> state_prior(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [0.75, 0.25]
    """
    return (q.sum(0) + 1) / (len(q) + q.shape[1])


def even_prior(classes: int, none: float) -> Tensor:
    """Shares of the states, (C + 1,), where all classes are alike."""
    return torch.tensor([*[(1 - none) / classes] * classes, none])


def label_given_truth(q: Tensor, y: Tensor, classes: int) -> LabelTable:
    """P(y | z) counted from the posterior.

    Args:
        q: (n, C + 1).
        y: web labels, (n,), -1 for none.
        classes: C.
    """
    has = y >= 0
    occur = torch.bincount(y[has], minlength=classes).nonzero()[:, 0]
    row = torch.full((classes,), len(occur))
    row[occur] = torch.arange(len(occur))
    counts = torch.zeros(len(occur) + 1, classes + 1).index_add_(0, row[y[has]], q[has])
    return LabelTable(counts, row, LABEL_SPREAD, LABEL_TRUST)


def tag_rates(q: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """How often a tag is given where its class is shown, and where it is not, (C,) each.

    >>> hit, false = tag_rates(torch.tensor([[1.0], [0.0]]).repeat(5000, 1), torch.ones(10000, 1))
    >>> round(float(hit), 2), round(float(false), 2)
    (0.99, 0.6)
    """
    hit = ((q * y).sum(0) + 3) / (q.sum(0) + 5)
    false = (((1 - q) * y).sum(0) + 0.05) / ((1 - q).sum(0) + 5)
    return hit.clamp(0.05, 0.99), false.clamp(LOW, 0.6)


def tag_evidence(y: Tensor, hit: Tensor, false: Tensor) -> Tensor:
    """Log-odds that a tag, or its absence, adds for its class, (n, C)."""
    return y * (hit / false).log() + (1 - y) * ((1 - hit) / (1 - false)).log()


def agreement(words: Tensor, picture: Tensor, prior: Tensor) -> Tensor:
    """Log of sum_z P(z | words) P(z | picture) / pi(z), from logs: (n, K) x (n, K) x (K,) -> (n,).

    It is 0 where one view says no more than the prior, and positive where both say the same.

    >>> sure = torch.tensor([[1.0, 1e-9]]).log()
    >>> agreement(sure, sure, torch.tensor([0.5, 0.5])).exp().round().tolist()
    [2.0]
    """
    return torch.logsumexp(words + picture - prior.clamp(min=TINY).log(), 1)


class Temperature(NamedTuple):
    """How logits of a picture become log P(z | picture)."""

    sharp: Tensor
    bias: Tensor  # (K,)

    def __call__(self, logits: Tensor) -> Tensor:
        """(n, K) -> (n, K)."""
        return F.log_softmax(self.sharp * logits + self.bias, 1)


def temperature(logits: Tensor, words: Tensor, prior: Tensor, *, shared: bool = False) -> Temperature:
    """Find the sharpness and the biases that make held-out pictures agree best with words.

    Args:
        logits: of the picture, out of fold, (n, K).
        words: log P(z | words), (n, K).
        prior: pi, (K,).
        shared: no state has a bias of its own.
    """
    sharp, bias = torch.ones(()), torch.zeros(logits.shape[1])

    def value() -> Tensor:
        seen = Temperature(sharp, bias)(logits)
        return 1e-3 * (bias**2).sum() - agreement(words, seen, prior).mean()

    minimise(value, [sharp] if shared else [sharp, bias], 30)
    return Temperature(sharp.clamp(min=0), bias)


def pool(words: Tensor, picture: Tensor, prior: Tensor) -> Tensor:
    """Posterior P(z | words) P(z | picture) / pi(z), normalised, (n, K): the views are independent given z."""
    return (words + picture - prior.clamp(min=TINY).log()).softmax(1)


def cautious_pool(words: Tensor, picture: Tensor, prior: Tensor) -> Tensor:
    """Posterior pi(z) [P(z | words) / pi(z)]^w [P(z | picture) / pi(z)]^(1 - w), normalised, (n, K).

    For two views whose dependence is unknown. The weights of a sample sum to one, so evidence that both
    views share is counted once; w is the words' share of what is known, by its divergence from the prior.
    A view that repeats the other adds nothing, nor does one that knows no more than the prior.

    Args:
        words: log P(z | words), (n, K).
        picture: log P(z | picture), (n, K).
        prior: pi, (K,).

    >>> half, sure = torch.tensor([0.5, 0.5]), torch.tensor([[0.8, 0.2]]).log()
    >>> [round(float(cautious_pool(sure, other, half)[0, 0]), 3) for other in (sure, half.log()[None])]
    [0.8, 0.8]
    """
    log_prior = prior.clamp(min=TINY).log()
    known = [
        (view.exp() * (view - log_prior)).sum(1, keepdim=True).clamp(min=TINY) for view in (words, picture)
    ]
    w = known[0] / (known[0] + known[1])
    return (w * words + (1 - w) * picture).softmax(1)


def settled(q: Tensor, known: Tensor | None) -> Tensor:
    """A posterior with what a person has decided in its place.

    Args:
        q: (n, K).
        known: probabilities that are settled, (n, K), nan where nothing is; None: nothing is settled.

    >>> settled(torch.tensor([[0.6, 0.4], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [torch.nan, torch.nan]])).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    return q if known is None else torch.where(known.isnan(), q, known)


def log_odds(p: Tensor) -> Tensor:
    """Log-odds of a probability, kept finite."""
    return torch.logit(p.clamp(LOW, 0.99))
