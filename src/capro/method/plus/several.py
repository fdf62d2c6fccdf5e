"""Several labels: the posterior of every (sample, class) pair. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from capro.method.plus.evidence import Posterior, log_odds, settled, tag_evidence, tag_rates
from capro.method.plus.fitting import assign_folds, cross_entropy, judge_folds, minimise
from capro.method.plus.joint import Joint, counted
from capro.method.plus.one_label import FOLDS, GATE_RIDGE

ROUNDS_SEVERAL = 4


class _TagWords:
    """Log-odds of each class from tags and fields; the tags' weight stays 1, the fields' are fitted.

    With `fits`, (n, f), of an image-text model, a text that does not fit its picture counts less.
    """

    def __init__(
        self, cosines: Sequence[Tensor], present: Sequence[Tensor], prior: Tensor, fits: Tensor | None = None
    ) -> None:
        self.cosines, self.present, self.fits = cosines, present, fits
        self.gate = torch.zeros(0 if fits is None else fits.shape[1])
        self.slope = torch.full((len(cosines),), 5.0)
        self.field_bias, self.bias = torch.zeros(len(cosines), len(prior)), log_odds(prior)

    def logits(self, tags: Tensor) -> Tensor:
        """(n, C), from the tags' evidence, (n, C)."""
        out = self.bias + tags
        weight = None if self.fits is None else counted(self.fits, self.gate)
        for j, (cosine, present) in enumerate(zip(self.cosines, self.present, strict=True)):
            # a field may have several cosines, one after the other
            here = (
                present if weight is None else present * weight[:, j * weight.shape[1] // len(self.cosines)]
            )
            out = out + here[:, None] * (self.slope[j] * cosine + self.field_bias[j])
        return out

    def fit(self, tags: Tensor, q: Tensor) -> None:
        """To the posterior, from where the parameters are."""
        parameters = [p for p in (self.slope, self.field_bias, self.bias, self.gate) if p.numel()]

        def value() -> Tensor:
            loss = cross_entropy(self.logits(tags), q, several=True).mean()
            loss = loss + 1e-3 * (self.field_bias**2).sum()
            return loss + GATE_RIDGE * (self.gate**2).mean() if len(self.gate) else loss

        minimise(value, parameters, 60)


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
    cosines = [t @ meaning.T for t in texts for meaning in meanings]
    present = [t.any(1) for t in texts for _ in meanings]
    prior = given.mean(0).clamp(min=1e-3)
    hit, false = torch.full_like(prior, 0.6), torch.full_like(prior, 0.04)
    model = _TagWords(cosines, present, prior, None if joint is None else joint.fits)
    offsets = None if joint is None else joint.cosines[:, :, None]
    picture, scales = judge_folds(x, settled(given, known), fold, several=True, offsets=offsets)
    tags = tag_evidence(given, hit, false)
    model.fit(tags, settled(picture.sigmoid(), known))
    for turn in range(rounds):
        words, seen = model.logits(tags), picture - log_odds(prior)
        q = settled((words + seen).sigmoid(), known)
        hit, false = tag_rates(q, given)
        if turn == rounds - 1:
            break
        tags = tag_evidence(given, hit, false)
        model.fit(tags, q)
        prior = q.mean(0)
        picture, scales = judge_folds(x, q, fold, several=True, offsets=offsets)
    weights = model.slope.reshape(len(texts), len(meanings))
    found = Posterior(q, words, seen, prior, torch.stack([hit, false]), 1.0, weights, True)
    if joint is None:
        return found
    return replace(found, zero_shot_weight=float(scales[0]), fit_weights=model.gate)
