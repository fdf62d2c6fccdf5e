"""One label: the posterior of the true class, or of none of these. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

from capro.method.plus.evidence import (
    Posterior,
    cautious_pool,
    label_given_truth,
    pool,
    settled,
    state_prior,
    tempered,
)
from capro.method.plus.fitting import TINY, assign_folds, cross_entropy, judge_folds, minimise, out_of_fold
from capro.method.plus.joint import Joint, counted
from capro.method.plus.label_free import picture_to_text, text_guess

FOLDS = 3
ROUNDS = 6  # one label
TEXT_DECAY = 1e-3  # of V
NONE_SHARE = 0.05  # of the texts, per criterion, that start as none of these
GATE_RIDGE = 1e-3  # of how much more a text counts that fits its picture
ZERO_SHOT = 3.0  # logits per standard deviation where pictures are all that is known: about what CLIP was trained with


@dataclass(frozen=True)
class _Field:
    """One text field of every sample, compared with the classes."""

    cosines: Tensor  # (n, C)
    present: Tensor  # (n,) bool
    none: Tensor  # (n, 2): best cosine to a class, to another sense of the query word


def _fields(
    texts: Sequence[Tensor], class_texts: Tensor, word: Tensor, senses: Tensor, owner: Tensor
) -> list[_Field]:
    found = []
    for t in texts:
        cosines = t @ class_texts.T
        other = (t @ senses.T).masked_fill(owner[None] != word[:, None], -torch.inf)
        best = other.max(1)[0] if len(owner) else torch.full((len(t),), -torch.inf)
        best = torch.where(best.isinf(), cosines.mean(1), best)  # a word with one sense
        none = torch.stack([cosines.max(1)[0], best], 1)
        found.append(_Field(cosines, t.any(1), none))
    return found


def _mean_field(fields: Sequence[_Field], like: Tensor, classes: int) -> _Field:
    """The mean over the fields that are present; zeros where none is."""
    n = len(like)
    cosines, none, count = torch.zeros(n, classes), torch.zeros(n, 2), torch.zeros(n)
    for field in fields:
        here = field.present.float()
        cosines, none = cosines + here[:, None] * field.cosines, none + here[:, None] * field.none
        count = count + here
    size = count.clamp(min=1)[:, None]
    return _Field(cosines / size, count > 0, none / size)


def first_none(field: _Field, share: float = NONE_SHARE) -> Tensor:
    """Texts far from every class, or nearer to another sense of their word, (n,) bool.

    Those with the lowest `share` of best cosines, and of best cosine less that of another sense.
    """
    out = torch.zeros(len(field.present), dtype=torch.bool)
    if not field.present.any():
        return out
    far, margin = field.none[:, 0], field.none[:, 0] - field.none[:, 1]
    for score in (far, margin):
        out |= field.present & (score < score[field.present].quantile(share))
    return out


class _Words:
    """P(z | words): weights of the label and of each field, fitted together.

    With `fits`, (n, f), of an image-text model, a text that does not fit its picture counts less.
    """

    def __init__(self, fields: Sequence[_Field], classes: int, fits: Tensor | None = None) -> None:
        m, states = len(fields), classes + 1
        self.fields, self.fits = fields, fits
        self.gate = torch.zeros(0 if fits is None else m)
        self.label = torch.zeros(())
        self.slope, self.none_slope = (torch.full((m,), 6.0), torch.tensor([[-3.0, 0.0]]).repeat(m, 1))
        self.field_bias, self.bias = torch.zeros(m, states), torch.zeros(states)

    def logits(self, label: Tensor) -> Tensor:
        """(n, C + 1), from log P(y | z) of each sample, (n, C + 1)."""
        out = self.label * label + self.bias
        weight = None if self.fits is None else counted(self.fits, self.gate)
        for j, field in enumerate(self.fields):
            none = (field.none * self.none_slope[j]).sum(1, keepdim=True)
            text = torch.cat([self.slope[j] * field.cosines, none], 1) + self.field_bias[j]
            here = field.present if weight is None else field.present * weight[:, j]
            out = out + here[:, None] * text
        return out

    def fit(self, label: Tensor, q: Tensor, *, with_label: bool = True) -> None:
        """To the posterior, from where the parameters are."""
        parameters = [self.slope, self.none_slope, self.field_bias, self.bias, self.gate]
        parameters = [p for p in parameters if p.numel()]

        def value() -> Tensor:
            ridge = 1e-4 * (self.bias**2).mean()
            if self.fields:
                ridge = ridge + 1e-3 * (self.field_bias**2).mean()
            if len(self.gate):
                ridge = ridge + GATE_RIDGE * (self.gate**2).mean()
            return cross_entropy(self.logits(label), q).mean() + ridge

        minimise(value, [*parameters, *([self.label] if with_label else [])], 40)


def _label_evidence(table: Tensor, y: Tensor) -> Tensor:
    """Log-likelihood P(y | z) of each sample, (n, C + 1); zeros without a label."""
    found = table.clamp(min=TINY).log()[:, y.clamp(min=0)].T
    return torch.where(y[:, None] >= 0, found, 0.0)


def _start_table(classes: int) -> tuple[Tensor, Tensor]:
    """P(y | z) and pi before anything is known."""
    table = torch.full((classes + 1, classes), 0.4 / max(1, classes - 1))
    table[:classes].fill_diagonal_(0.6)
    table[classes] = 1 / classes
    return table / table.sum(1, keepdim=True), torch.tensor([*[0.9 / classes] * classes, 0.1])


def _read_texts(
    texts: Sequence[Tensor], class_texts: Tensor, y: Tensor, senses: Tensor | None, owner: Tensor | None
) -> tuple[Tensor, list[_Field]]:
    """The class whose word fetched each sample (the nearest class without a label), and the fields."""
    senses = torch.zeros(0, class_texts.shape[1]) if senses is None else senses
    owner = torch.zeros(0, dtype=torch.int64) if owner is None else owner
    likeness = sum((t @ class_texts.T for t in texts), torch.zeros(len(y), len(class_texts)))
    word = torch.where(y >= 0, y, likeness.argmax(1))
    return word, _fields(texts, class_texts, word, senses, owner)


def _first_targets(fields: Sequence[_Field], y: Tensor, word: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """What the first classifiers are fitted to, (n, C + 1), and who starts as none of these, (n,)."""
    field = _mean_field(fields, y, classes)
    none = first_none(field)
    target = F.one_hot(torch.where(none, classes, word), classes + 1).float()
    target[(y < 0) & ~field.present] = 1 / (classes + 1)  # nothing known
    return target, none


def _blind(target: Tensor) -> bool:
    """Whether no first target says anything: there is neither a label nor a text."""
    return bool((target == target[:, :1]).all())


def _guessed(guesses: Sequence[Tensor], target: Tensor) -> Tensor:
    """Logits of label-free guesses, (n, C + 1), as sharp as the first targets are predicted best.

    Args:
        guesses: of the texts, (n, C), and of an image-text model where there is one.
        target: (n, C + 1); where no row says anything, the guesses stay as sharp as they start.
    """
    sharp, named = torch.tensor([5.0, ZERO_SHOT][: len(guesses)]), target[:, :-1]

    def logits() -> Tensor:
        return sum((scale * guess for scale, guess in zip(sharp, guesses, strict=True)), torch.zeros(()))

    def value() -> Tensor:
        return cross_entropy(logits(), named).mean() + 1e-4 * (sharp**2).sum()

    if not _blind(target):
        minimise(value, [sharp], 30)
        sharp = sharp.clamp(min=0)
    found = logits()
    share = torch.tensor([0.9, 0.1]).log()
    return torch.cat([found + share[0], found.logsumexp(1, keepdim=True) + share[1]], 1)


def single_label(
    x: Tensor,
    texts: Sequence[Tensor],
    class_texts: Tensor,
    y: Tensor,
    *,
    anchors: Tensor | None = None,
    senses: Tensor | None = None,
    owner: Tensor | None = None,
    joint: Joint | None = None,
    known: Tensor | None = None,
    folds: int = FOLDS,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Posterior:
    """Posterior of the true class of each sample.

    Args:
        x: picture features, (n, d), of `centred`.
        texts: each field's text vectors, (n, d_t), unit rows, zero where there is no text; no field
            may be made from pictures (enhanced texts): the views would no longer be independent.
        class_texts: s^c, (C, d_t), unit rows.
        y: web labels, (n,); -1 for none. All -1 works: the label-free start.
        anchors: samples whose text means their class, (n,) bool: only where the picture's first
            classifier comes from. They have no other rank. None: the label-free guess.
        senses: texts of the other senses of class names, (m, d_t).
        owner: the class each of them belongs to, (m,).
        joint: what an image-text model says of pictures, classes and texts.
        known: what a person has decided, (n, C + 1), nan where nothing is: fixed in the posterior, and so
            in everything that is fitted to it.
        folds: of the judging out of fold.
        rounds: of EM.
        seed: of the folds.
    """
    C, fold = len(class_texts), assign_folds(len(x), folds, seed)
    word, fields = _read_texts(texts, class_texts, y, senses, owner)
    vectors, residual = _text_vectors(texts, x), torch.zeros(len(x), C + 1)
    target, none = _first_targets(fields, y, word, C)
    target = settled(target, known)
    table, prior = _start_table(C)
    label = _label_evidence(table, y)
    offsets = None if joint is None else joint.offsets()
    if joint is not None and _blind(target):
        rounds = 1  # pictures are all that is known: there is no other view to learn from
    if anchors is not None and bool(anchors.any()):
        weight = anchors.float() + 0.5 * none.float() + 1e-9
        weight = weight if known is None else torch.where(known.isnan().any(1), weight, 1.0)
        logits = out_of_fold(x, target, fold, weight=weight, offsets=offsets)
    else:
        guesses = [
            text_guess(picture_to_text(x, texts, fold), class_texts),
            *([joint.cosines] if joint else []),
        ]
        logits = _guessed(guesses, target)
    model, scales = _Words(fields, C, None if joint is None else joint.fits), torch.tensor([ZERO_SHOT])
    model.fit(label, 0.9 * target + 0.1 / (C + 1), with_label=False)
    model.label.fill_(1.0)
    for turn in range(rounds):
        words = (model.logits(label) + residual).log_softmax(1)
        picture = tempered(logits, words, prior) if turn else logits.log_softmax(1)
        q = settled(pool(words, picture, prior), known)
        prior, table = state_prior(q), label_given_truth(q, y, C)
        if turn == rounds - 1:
            break
        label = _label_evidence(table, y)
        model.fit(label, q, with_label=bool((y >= 0).any()))
        if turn and vectors.shape[1]:
            base = model.logits(label)
            residual = out_of_fold(vectors, q, fold, base=base, decay=TEXT_DECAY)
        logits, scales = judge_folds(x, q, fold, offsets=offsets)
    q = settled(cautious_pool(words, picture, prior), known)
    found = Posterior(q, words, picture, prior, table, float(model.label), model.slope)
    if joint is None:
        return found
    return replace(found, zero_shot_weight=float(scales[0]), fit_weights=model.gate)


def _text_vectors(texts: Sequence[Tensor], like: Tensor) -> Tensor:
    """All fields side by side, each less the mean of the texts that are present, (n, f d_t)."""
    parts = [torch.zeros(len(like), 0)]
    for t in texts:
        here = t.any(1, keepdim=True)
        parts.append((t - t[here[:, 0]].sum(0) / here.sum().clamp(min=1)) * here)
    return torch.cat(parts, 1)
