"""One label: the posterior of the true class, or of none of these. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

from capro.core.plus.evidence import (
    Beliefs,
    LabelTable,
    Posterior,
    Temperature,
    cautious_pool,
    even_prior,
    label_given_truth,
    pool,
    settled,
    state_prior,
    temperature,
)
from capro.core.plus.fitting import Linear, assign_folds, cross_entropy, judge_folds, minimise
from capro.core.plus.joint import Joint, counted
from capro.core.plus.label_free import picture_to_text, text_guess

FOLDS = 3
ROUNDS = 6  # one label
TEXT_DECAY = 1e-3  # of V
NONE_SHARE = 0.05  # of the texts, per criterion, that start as none of these
ANCHORS_PER_CLASS, ANCHORS_SHARE = 10, 0.25  # at least and at most, for a start from them
CELLS = 2**22  # of samples x senses that are compared at once
GATE_RIDGE = 1e-3  # of how much more a text counts that fits its picture
TEXT_GUESS = 5.0  # sharpness that a guess by texts starts with
ZERO_SHOT = 3.0  # logits per standard deviation where pictures are all that is known: about what CLIP was trained with


@dataclass(frozen=True)
class Field:
    """One text field of every sample, compared with the classes; all is zero where there is no text."""

    cosines: Tensor  # (n, C + 1), 0 for none of these
    present: Tensor  # (n,) bool
    none: Tensor  # (n, 2): best cosine to a class, to another sense of the query word


def _fields(
    texts: Sequence[Tensor], class_texts: Tensor, word: Tensor, senses: Tensor, owner: Tensor
) -> list[Field]:
    found = []
    states = torch.cat([class_texts, torch.zeros(1, class_texts.shape[1])])
    for t in texts:
        cosines = t @ states.T
        named = cosines[:, :-1]
        best = _best_sense(t, word, senses, owner)
        best = torch.where(best.isinf(), named.mean(1), best)  # a word with one sense
        none = torch.stack([named.max(1)[0], best], 1)
        found.append(Field(cosines, t.any(1), none))
    return found


def _best_sense(t: Tensor, word: Tensor, senses: Tensor, owner: Tensor) -> Tensor:
    """Highest cosine to another sense of a sample's own word, (n,); -inf where the word has one sense."""
    best = torch.full((len(t),), -torch.inf)
    if not len(owner):
        return best
    size = max(1, CELLS // len(owner))
    for begin in range(0, len(t), size):
        rows = slice(begin, begin + size)
        other = (t[rows] @ senses.T).masked_fill_(owner[None] != word[rows, None], -torch.inf)
        best[rows] = other.max(1)[0]
    return best


def _mean_field(fields: Sequence[Field], like: Tensor, classes: int) -> Field:
    """The mean over the fields that are present; zeros where none is."""
    n = len(like)
    cosines, none, count = torch.zeros(n, classes + 1), torch.zeros(n, 2), torch.zeros(n)
    for field in fields:
        here = field.present.float()
        cosines, none = cosines + here[:, None] * field.cosines, none + here[:, None] * field.none
        count = count + here
    size = count.clamp(min=1)[:, None]
    return Field(cosines / size, count > 0, none / size)


def first_none(field: Field, share: float = NONE_SHARE) -> Tensor:
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


def worth_a_start(anchors: Tensor, classes: int) -> bool:
    """Whether the picture's first classifier should come from anchors, (n,) bool, or from the label-free guess.

    Too few of them teach no classifier, and nearly all samples are no choice: it would learn the wrong labels.

    >>> worth_a_start(torch.arange(100) < 20, 2), worth_a_start(torch.arange(100) < 20, 4)
    (True, False)
    """
    chosen = int(anchors.sum())
    return classes * ANCHORS_PER_CLASS <= chosen <= len(anchors) * ANCHORS_SHARE


class Words:
    """P(z | words): weights of the label and of each field, fitted together.

    With `fits`, (n, f), of an image-text model, a text that does not fit its picture counts less. With `shared` only
    none of these has biases.
    """

    def __init__(self, fields: int, classes: int, *, gated: bool, shared: bool = False) -> None:
        m, states = fields, 1 if shared else classes + 1
        self.gate = torch.zeros(m if gated else 0)
        self.label = torch.zeros(())
        self.slope, self.none_slope = (torch.full((m,), 6.0), torch.tensor([[-3.0, 0.0]]).repeat(m, 1))
        self.field_bias, self.bias = torch.zeros(m, states), torch.zeros(states)

    def logits(self, label: Tensor, fields: Sequence[Field], fits: Tensor | None) -> Tensor:
        """(n, C + 1), from log P(y | z) of each sample, (n, C + 1), and its texts."""
        weight = None if fits is None else counted(fits, self.gate)
        columns, rows = [torch.zeros(len(label), 0)], [torch.zeros(0, label.shape[1])]
        for j, field in enumerate(fields):
            here = field.present.float() if weight is None else field.present * weight[:, j]
            columns += [here[:, None], here[:, None] * field.none]
            rows += [
                last_states(self.field_bias[j][None], label),
                last_states(self.none_slope[j][:, None], label),
            ]
        # arrays of (n, C + 1) are what a fit spends its time on: one product, then sums in place
        out = torch.addmm(last_states(self.bias, label), torch.cat(columns, 1), torch.cat(rows))
        out.addcmul_(label, self.label)
        for j, field in enumerate(fields):
            out.addcmul_(
                field.cosines, self.slope[j] if weight is None else (self.slope[j] * weight[:, j])[:, None]
            )
        return out

    def fit(
        self,
        label: Tensor,
        fields: Sequence[Field],
        fits: Tensor | None,
        q: Tensor,
        *,
        with_label: bool = True,
        with_none: bool = True,
    ) -> None:
        """To the posterior, from where the parameters are; without those of label or of none of these, if asked."""
        parameters = [self.slope, self.gate]
        parameters += [self.none_slope, self.field_bias, self.bias] if with_none else []
        parameters = [p for p in parameters if p.numel()]

        def value() -> Tensor:
            ridge = 1e-4 * (self.bias**2).mean()
            if fields:
                ridge = ridge + 1e-3 * (self.field_bias**2).mean()
            if len(self.gate):
                ridge = ridge + GATE_RIDGE * (self.gate**2).mean()
            return cross_entropy(self.logits(label, fields, fits), q).mean() + ridge

        minimise(value, [*parameters, *([self.label] if with_label else [])], 40)


def last_states(values: Tensor, like: Tensor) -> Tensor:
    """Values of the last states, zero for those before, (..., m) -> (..., K)."""
    return F.pad(values, (like.shape[1] - values.shape[-1], 0))


def read_texts(
    texts: Sequence[Tensor], class_texts: Tensor, y: Tensor, senses: Tensor, owner: Tensor
) -> tuple[Tensor, list[Field]]:
    """The class whose word fetched each sample (the nearest class without a label), and the fields."""
    likeness = sum((t @ class_texts.T for t in texts), torch.zeros(len(y), len(class_texts)))
    word = torch.where(y >= 0, y, likeness.argmax(1))
    return word, _fields(texts, class_texts, word, senses, owner)


def first_targets(fields: Sequence[Field], y: Tensor, word: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """What the first classifiers are fitted to, (n, C + 1), and who starts as none of these, (n,)."""
    field = _mean_field(fields, y, classes)
    none = first_none(field)
    target = F.one_hot(torch.where(none, classes, word), classes + 1).float()
    target[(y < 0) & ~field.present] = 1 / (classes + 1)  # nothing known
    return target, none


def _blind(target: Tensor) -> bool:
    """Whether no first target says anything: there is neither a label nor a text."""
    return bool((target == target[:, :1]).all())


def joined(guesses: Sequence[Tensor], sharp: Tensor) -> Tensor:
    """Guesses, (n, C) each, by their sharpness, (n, C)."""
    return sum((scale * guess for scale, guess in zip(sharp, guesses, strict=True)), torch.zeros(()))


def with_none(logits: Tensor) -> Tensor:
    """Logits of the classes with none of these, one in ten, (n, C) -> (n, C + 1)."""
    share = torch.tensor([0.9, 0.1]).log()
    return torch.cat([logits + share[0], logits.logsumexp(1, keepdim=True) + share[1]], 1)


def sharpness_of(guesses: Sequence[Tensor], target: Tensor, start: Sequence[float]) -> Tensor:
    """With which label-free guesses predict the first targets best, one number each.

    Args:
        guesses: (n, C) each.
        target: (n, C + 1); where no row says anything, the guesses stay as sharp as they start.
        start: how sharp each is at first.
    """
    sharp, named = torch.tensor(start), target[:, :-1]

    def value() -> Tensor:
        return cross_entropy(joined(guesses, sharp), named).mean() + 1e-4 * (sharp**2).sum()

    if not _blind(target):
        minimise(value, [sharp], 30)
        sharp = sharp.clamp(min=0)
    return sharp


# features, (n, d), web labels, (n,), and what an image-text model says -> logits, (n, C + 1)
Look = Callable[[Tensor, Tensor, Joint | None], Tensor]


def _first_look(
    x: Tensor,
    texts: Sequence[Tensor],
    class_texts: Tensor,
    target: Tensor,
    fold: Tensor,
    *,
    weight: Tensor | None,
    joint: Joint | None,
) -> tuple[Tensor, Look]:
    """What pictures say before the first round, and the same for others.

    By a classifier of the targets where samples have a weight (anchors), else by a guess that reads no label.
    """
    if weight is not None:
        offsets = None if joint is None else joint.offsets()
        found = judge_folds(x, target, fold, weight=weight, offsets=offsets)
        return found.logits, partial(_by_model, found.model)
    regressed = picture_to_text(x, texts, fold)
    first = guesses(regressed.predicted, class_texts, joint)
    sharp = sharpness_of(first, target, [TEXT_GUESS, ZERO_SHOT][: len(first)])
    return with_none(joined(first, sharp)), partial(_by_guesses, regressed.B, class_texts, sharp)


def guesses(predicted: Tensor, class_texts: Tensor, joint: Joint | None, *others: Tensor) -> list[Tensor]:
    """What pictures say by no label of theirs: through predicted texts, (n, d_t), others, an image-text model."""
    return [text_guess(predicted, class_texts), *others, *([joint.cosines] if joint else [])]


# Looks are parts of these functions, not closures: they are sent to other processes.


def _by_guesses(
    B: Tensor, class_texts: Tensor, sharp: Tensor, x: Tensor, _: Tensor, joint: Joint | None
) -> Tensor:
    return with_none(joined(guesses(x @ B, class_texts, joint), sharp))


def _by_model(model: Linear, x: Tensor, _: Tensor, joint: Joint | None) -> Tensor:
    return model(x, None if joint is None else joint.offsets())


@dataclass(frozen=True)
class Fitted:
    """Everything that the last round was judged with."""

    class_texts: Tensor
    senses: Tensor
    owner: Tensor
    table: LabelTable  # P(y | z) that the words were read with
    prior: Tensor
    model: Words
    correction: Linear | None  # of the text vectors
    means: list[Tensor]  # of the fields' text vectors
    look: Look
    sharpness: Temperature | None
    join: Callable[[Tensor, Tensor, Tensor], Tensor] = cautious_pool  # words, picture, prior -> posterior

    def of(
        self,
        x: Tensor,
        texts: Sequence[Tensor],
        y: Tensor,
        *,
        joint: Joint | None = None,
        known: Tensor | None = None,
    ) -> Beliefs:
        """Beliefs in samples that the fit has not seen; arguments as in `single_label`."""
        _, fields = read_texts(texts, self.class_texts, y, self.senses, self.owner)
        label = self.table.evidence(y)
        logits = self.model.logits(label, fields, None if joint is None else joint.fits)
        if self.correction is not None:
            logits = logits + self.correction(_text_vectors(texts, x, self.means))
        words, seen = logits.log_softmax(1), self.look(x, y, joint)
        picture = seen.log_softmax(1) if self.sharpness is None else self.sharpness(seen)
        return Beliefs(settled(self.join(words, picture, self.prior), known), words, picture)


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
            classifier comes from, if they are a choice (`worth_a_start`). They have no other rank. None: the
            label-free guess.
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
    senses = torch.zeros(0, class_texts.shape[1]) if senses is None else senses
    owner = torch.zeros(0, dtype=torch.int64) if owner is None else owner
    fits = None if joint is None else joint.fits
    word, fields = read_texts(texts, class_texts, y, senses, owner)
    means = _text_means(texts)
    vectors, residual = _text_vectors(texts, x, means), torch.zeros(len(x), C + 1)
    target, none = first_targets(fields, y, word, C)
    target = settled(target, known)
    table, prior = LabelTable.even(C), even_prior(C, 0.1)
    label = table.evidence(y)
    offsets = None if joint is None else joint.offsets()
    if joint is not None and _blind(target):
        rounds = 1  # pictures are all that is known: there is no other view to learn from
    weight = None
    if anchors is not None and worth_a_start(anchors, C):
        weight = anchors.float() + 0.5 * none.float() + 1e-9
        weight = weight if known is None else torch.where(known.isnan().any(1), weight, 1.0)
    logits, look = _first_look(x, texts, class_texts, target, fold, weight=weight, joint=joint)
    model, scales = Words(len(fields), C, gated=joint is not None), torch.tensor([ZERO_SHOT])
    sharpness: Temperature | None = None
    correction: Linear | None = None
    model.fit(label, fields, fits, 0.9 * target + 0.1 / (C + 1), with_label=False)
    model.label.fill_(1.0)
    for turn in range(rounds):
        words, read = (model.logits(label, fields, fits) + residual).log_softmax(1), table
        if turn:
            sharpness = temperature(logits, words, prior)
        picture = logits.log_softmax(1) if sharpness is None else sharpness(logits)
        q = settled(pool(words, picture, prior), known)
        prior, table = state_prior(q), label_given_truth(q, y, C)
        if turn == rounds - 1:
            break
        label = table.evidence(y)
        model.fit(label, fields, fits, q, with_label=bool((y >= 0).any()))
        if turn and vectors.shape[1]:
            base = model.logits(label, fields, fits)
            residual, correction = judge_folds(vectors, q, fold, base=base, decay=TEXT_DECAY)
        logits, seen = judge_folds(x, q, fold, offsets=offsets)
        look, scales = partial(_by_model, seen), seen.scales
    q = settled(cautious_pool(words, picture, prior), known)
    fitted = Fitted(class_texts, senses, owner, read, prior, model, correction, means, look, sharpness)
    found = Posterior(q, words, picture, prior, table, float(model.label), model.slope, fitted.of)
    if joint is None:
        return found
    return replace(found, zero_shot_weight=float(scales[0]), fit_weights=model.gate)


def _text_means(texts: Sequence[Tensor]) -> list[Tensor]:
    """The mean of the texts that are present, of each field, (d_t,)."""
    return [t.sum(0) / t.any(1).sum().clamp(min=1) for t in texts]


def _text_vectors(texts: Sequence[Tensor], like: Tensor, means: Sequence[Tensor]) -> Tensor:
    """All fields side by side, each less its mean where there is a text, (n, f d_t)."""
    parts = [torch.zeros(len(like), 0)]
    parts += [(t - mean) * t.any(1, keepdim=True) for t, mean in zip(texts, means, strict=True)]
    return torch.cat(parts, 1)
