"""Several labels: the posterior of every (sample, class) pair. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from capro.core.plus.evidence import Beliefs, Posterior, log_odds, settled, tag_evidence, tag_rates
from capro.core.plus.fitting import Linear, assign_folds, cross_entropy, judge_folds, minimise
from capro.core.plus.joint import Joint, counted
from capro.core.plus.one_label import FOLDS, GATE_RIDGE

ROUNDS_SEVERAL = 4


class _Read(NamedTuple):
    """The texts of samples, compared with the classes."""

    cosines: list[Tensor]  # of each field to each meaning, (n, C)
    present: list[Tensor]  # (n,) bool
    fits: Tensor | None  # of an image-text model, (n, f)

    @classmethod
    def of(cls, texts: Sequence[Tensor], meanings: Sequence[Tensor], joint: Joint | None) -> _Read:
        """Texts, (n, d_t) each, and meanings of the classes, (C, d_t) each."""
        cosines = [t @ meaning.T for t in texts for meaning in meanings]
        present = [t.any(1) for t in texts for _ in meanings]
        return cls(cosines, present, None if joint is None else joint.fits)


class _TagWords:
    """Log-odds of each class from tags and fields; the tags' weight stays 1, the fields' are fitted.

    With `fits`, (n, f), of an image-text model, a text that does not fit its picture counts less.
    """

    def __init__(self, meanings: int, prior: Tensor, fits: Tensor | None) -> None:
        self.gate = torch.zeros(0 if fits is None else fits.shape[1])
        self.slope = torch.full((meanings,), 5.0)
        self.field_bias, self.bias = torch.zeros(meanings, len(prior)), log_odds(prior)

    def logits(self, tags: Tensor, read: _Read) -> Tensor:
        """(n, C), from the tags' evidence, (n, C), and the texts."""
        weight = None if read.fits is None else counted(read.fits, self.gate)
        columns = [torch.zeros(len(tags), 0)]
        for j, present in enumerate(read.present):
            # a field may have several cosines, one after the other
            column = 0 if weight is None else j * weight.shape[1] // len(read.cosines)
            columns.append((present.float() if weight is None else present * weight[:, column])[:, None])
        out = torch.addmm(self.bias, torch.cat(columns, 1), self.field_bias).add_(tags)
        for j, cosine in enumerate(read.cosines):  # 0 where there is no text
            out.addcmul_(cosine, self.slope[j] if weight is None else self.slope[j] * columns[j + 1])
        return out

    def fit(self, tags: Tensor, read: _Read, q: Tensor) -> None:
        """To the posterior, from where the parameters are."""
        parameters = [p for p in (self.slope, self.field_bias, self.bias, self.gate) if p.numel()]

        def value() -> Tensor:
            loss = cross_entropy(self.logits(tags, read), q, several=True).mean()
            loss = loss + 1e-3 * (self.field_bias**2).sum()
            return loss + GATE_RIDGE * (self.gate**2).mean() if len(self.gate) else loss

        minimise(value, parameters, 60)


@dataclass(frozen=True)
class _Fitted:
    """Everything that the last round was judged with."""

    meanings: list[Tensor]
    rates: tuple[Tensor, Tensor]  # hit and false
    model: _TagWords
    seen: Linear
    prior: Tensor

    def of(
        self,
        x: Tensor,
        texts: Sequence[Tensor],
        y: Tensor,
        *,
        joint: Joint | None = None,
        known: Tensor | None = None,
    ) -> Beliefs:
        """Beliefs in samples that the fit has not seen; arguments as in `several_labels`."""
        read = _Read.of(texts, self.meanings, joint)
        words = self.model.logits(tag_evidence(y.float(), *self.rates), read)
        offsets = None if joint is None else joint.cosines[:, :, None]
        picture = self.seen(x, offsets) - log_odds(self.prior)
        return Beliefs(settled((words + picture).sigmoid(), known), words, picture)


def several_labels(
    x: Tensor,
    texts: Sequence[Tensor],
    class_texts: Tensor,
    y: Tensor,
    *,
    class_names: Tensor | None = None,
    joint: Joint | None = None,
    known: Tensor | None = None,
    folds: int = FOLDS,
    rounds: int = ROUNDS_SEVERAL,
    seed: int = 0,
) -> Posterior:
    """Posterior of every (sample, class) pair.

    The start is a classifier of the tags judged out of fold; the words are fitted to it, so a field
    that only repeats the tags gets no weight. Log-odds of a pair: words + picture beyond the prior.

    Args:
        x: picture features, (n, d), of `centred`.
        texts: each field's text vectors, (n, d_t), unit rows, zero where there is no text.
        class_texts: s^c, (C, d_t), unit rows.
        y: given tags, (n, C) in {0, 1}.
        class_names: vectors of the bare class names, (C, d_t): a second cosine per field.
        joint: what an image-text model says of pictures, classes and texts.
        known: what a person has decided, (n, C), nan where nothing is: fixed in the posterior.
        folds: of the judging out of fold.
        rounds: of EM.
        seed: of the folds.
    """
    given, fold = y.float(), assign_folds(len(x), folds, seed)
    meanings = [class_texts] if class_names is None else [class_texts, class_names]
    read = _Read.of(texts, meanings, joint)
    prior = given.mean(0).clamp(min=1e-3)
    hit, false = torch.full_like(prior, 0.6), torch.full_like(prior, 0.04)
    model = _TagWords(len(read.cosines), prior, read.fits)
    offsets = None if joint is None else joint.cosines[:, :, None]
    picture, look = judge_folds(x, settled(given, known), fold, several=True, offsets=offsets)
    tags = tag_evidence(given, hit, false)
    model.fit(tags, read, settled(picture.sigmoid(), known))
    for turn in range(rounds):
        words, seen = model.logits(tags, read), picture - log_odds(prior)
        q = settled((words + seen).sigmoid(), known)
        fitted = _Fitted(meanings, (hit, false), model, look, prior)
        hit, false = tag_rates(q, given)
        if turn == rounds - 1:
            break
        tags = tag_evidence(given, hit, false)
        model.fit(tags, read, q)
        prior = q.mean(0)
        picture, look = judge_folds(x, q, fold, several=True, offsets=offsets)
    weights = model.slope.reshape(len(texts), len(meanings))
    found = Posterior(q, words, seen, prior, torch.stack([hit, false]), 1.0, weights, fitted.of, True)
    if joint is None:
        return found
    return replace(found, zero_shot_weight=float(look.scales[0]), fit_weights=model.gate)
