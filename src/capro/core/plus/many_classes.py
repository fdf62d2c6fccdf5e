"""One label and so many classes that a fit sees few samples of each: weights that all classes share. Pure.

With its own biases and its own picture classifier, a class that the fit never saw would not be believed
anywhere. Here P(y | z), the prior, the weights of label and texts and the sharpness of pictures are single
numbers, which some hundred samples fix. Pictures are compared with the centre of each class, over all
samples with its web label, and with the class texts (`label_free`). None of these is what the words say of it, texts
far from every class: it has no picture classifier that could confirm it. Otherwise EM is that of `one_label`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

from capro.core.plus.evidence import (
    LABEL_SPREAD,
    LABEL_TRUST,
    LabelTable,
    Posterior,
    Temperature,
    cautious_pool,
    even_prior,
    pool,
    settled,
    temperature,
)
from capro.core.plus.fitting import assign_folds
from capro.core.plus.joint import Joint
from capro.core.plus.label_free import picture_to_text
from capro.core.plus.one_label import (
    FOLDS,
    ROUNDS,
    TEXT_GUESS,
    ZERO_SHOT,
    Fitted,
    Words,
    first_targets,
    guesses,
    joined,
    read_texts,
    sharpness_of,
    with_none,
)


class Centres(NamedTuple):
    """Where the pictures of each web label lie."""

    sums: Tensor  # of their features, (C, d)
    sizes: Tensor  # how many there are, (C,)

    @classmethod
    def of(cls, x: Tensor, y: Tensor, classes: int) -> Centres:
        """Of pictures, (n, d), by their web labels, (n,), -1 for none."""
        has = y >= 0
        sums = torch.zeros(classes, x.shape[1]).index_add_(0, y[has], x[has])
        return cls(sums, torch.bincount(y[has], minlength=classes))

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Cosine of pictures to the centres, less its mean over classes, (n, d), (n,) -> (n, C).

        A picture is left out of the centre of its own label (-1: none). 0 for a class without pictures, and for all
        classes where the own label has no other picture: the other classes would have nothing to be compared with.
        """
        found = F.normalize(x, dim=1) @ F.normalize(self.sums, dim=1).T
        rows = (y >= 0).nonzero()[:, 0]
        own = y[rows]
        found[rows, own] = F.cosine_similarity(x[rows], self.sums[own] - x[rows])
        found -= found.mean(1, keepdim=True)
        found[:, self.sizes == 0] = 0.0
        found[rows] *= (self.sizes[own] > 1)[:, None]
        return found


def among_classes(
    words: Tensor, picture: Tensor, prior: Tensor, *, by: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Posterior, (n, C + 1): views are joined among the classes, the words decide on none of these.

    Args:
        words: log P(z | words), (n, C + 1).
        picture: log P(z | picture), (n, C + 1).
        prior: (C + 1,).
        by: `pool` or `cautious_pool`.
    """
    none = words[:, -1:].exp()
    classes = by(words[:, :-1].log_softmax(1), picture[:, :-1].log_softmax(1), prior[:-1] / prior[:-1].sum())
    return torch.cat([(1 - none) * classes, none], 1)


def right_labels(q: Tensor, y: Tensor) -> float:
    """How often the label of a sample of some class is right, by the posterior; pseudo-counts as of one class.

    >>> round(right_labels(torch.tensor([[1.0, 0.0, 0.0]]).repeat(1000, 1), torch.arange(1000) % 2), 1)
    0.5
    """
    rows = (y >= 0).nonzero()[:, 0]
    right, some = q[rows, y[rows]].sum(), q[rows, :-1].sum()
    return float((right + LABEL_TRUST) / (some + LABEL_TRUST + LABEL_SPREAD))


def _look(
    B: Tensor, class_texts: Tensor, sharp: Tensor, centres: Centres, x: Tensor, y: Tensor, joint: Joint | None
) -> Tensor:
    """What pictures of samples outside the fit say; no closure, since it is sent to other processes."""
    return with_none(joined(guesses(x @ B, class_texts, joint, centres(x, y)), sharp))


def many_classes(
    x: Tensor,
    texts: Sequence[Tensor],
    class_texts: Tensor,
    y: Tensor,
    *,
    centres: Centres,
    senses: Tensor,
    owner: Tensor,
    joint: Joint | None = None,
    known: Tensor | None = None,
    folds: int = FOLDS,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Posterior:
    """Posterior of the true class of each sample; arguments as in `single_label`, and the centres of all samples."""
    C, fits = len(class_texts), None if joint is None else joint.fits
    word, fields = read_texts(texts, class_texts, y, senses, owner)
    target = settled(first_targets(fields, y, word, C)[0], known)
    table, prior = LabelTable.even(C), even_prior(C, float((target[:, -1].sum() + 1) / (len(x) + 2)))
    regressed = picture_to_text(x, texts, assign_folds(len(x), folds, seed))
    first = guesses(regressed.predicted, class_texts, joint, centres(x, y))
    start = [TEXT_GUESS, TEXT_GUESS, ZERO_SHOT]
    sharp = sharpness_of(first, target, start[: len(first)])
    model, label = Words(len(fields), C, gated=joint is not None, shared=True), table.evidence(y)
    sharpness: Temperature | None = None
    model.fit(label, fields, fits, 0.9 * target + 0.1 / (C + 1), with_label=False)
    model.label.fill_(1.0)
    for turn in range(rounds):
        words, read = model.logits(label, fields, fits).log_softmax(1), table
        logits = with_none(joined(first, sharp))
        if turn:
            sharpness = temperature(logits, words, prior, shared=True)
        picture = logits.log_softmax(1) if sharpness is None else sharpness(logits)
        q = settled(among_classes(words, picture, prior, by=pool), known)
        table = LabelTable.even(C, right_labels(q, y))
        if turn == rounds - 1:
            break
        label = table.evidence(y)
        model.fit(label, fields, fits, q, with_label=bool((y >= 0).any()), with_none=False)
        sharp = sharpness_of(first, q, start[: len(first)])
    join = partial(among_classes, by=cautious_pool)
    q = settled(join(words, picture, prior), known)
    fitted = Fitted(
        class_texts, senses, owner, read, prior, model, None, [],
        partial(_look, regressed.B, class_texts, sharp, centres), sharpness, join,
    )  # fmt: skip
    found = Posterior(q, words, picture, prior, table, float(model.label), model.slope, fitted.of)
    return (
        found if joint is None else replace(found, zero_shot_weight=float(sharp[-1]), fit_weights=model.gate)
    )
