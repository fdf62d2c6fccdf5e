"""The two views of a sample: what its words say (labels and texts), and what its picture says. Pure.

P(z | words) = softmax(w log P(y | z) + sum_f (a_f cos(t_f, class text z) + b_fz) + b_z); w, a_f and b are fitted, so a
field that adds nothing to the label gets no weight. The picture's first word is a classifier of the anchors, or a guess
that reads no label: the picture regressed into the text space, learnt on the crawl's own pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

from capro.core.evidence import ClassMeanings, Evidence, Joint, text_weights
from capro.core.linear import Linear, cross_entropy, judge_folds, minimise

NONE_SHARE = 0.05  # of the texts, per criterion, that start as none of these
DOUBTED_BEST, DOUBTED_LABEL = 0.1, 0.25  # shares of pictures with the least probable best class, and label
OWN_MASS, SEEN_MASS, RIVAL_MASS = 0.1, 0.3, 0.2  # by the head: below a label, below any class, below a rival
HEAD_RECALL = 0.1  # share of the pictures of a label that the head must name
CELLS = 2**22  # of samples x senses that are compared at once
GATE_RIDGE = 1e-3  # of how much more a text counts that fits its picture
TEXT_GUESS = 5.0  # sharpness that a guess by texts starts with
ZERO_SHOT = 3.0  # logits per standard deviation where pictures are all that is known: about what CLIP was trained with


# --- texts, single-label --------------------------------------------------------------------------


@dataclass(frozen=True)
class TextField:
    """One text field of every sample, compared with the classes; all is zero where there is no text."""

    cosines: Tensor  # (n, C + 1), 0 for none of these
    present: Tensor  # (n,) bool
    none: Tensor  # (n, 2): best cosine to a class, to another sense of the query word

    @classmethod
    def of(cls, t: Tensor, meanings: ClassMeanings, word: Tensor) -> TextField:
        """Text vectors, (n, d_t), of samples that were searched for with the word of a class, (n,)."""
        texts = meanings.texts
        cosines = t @ torch.cat([texts, torch.zeros(1, texts.shape[1])]).T
        named = cosines[:, :-1]
        best = _best_sense(t, word, meanings)
        best = torch.where(best.isinf(), named.mean(1), best)  # a word with one sense
        return cls(cosines, t.any(1), torch.stack([named.max(1)[0], best], 1))

    @classmethod
    def mean(cls, fields: Sequence[TextField], n: int, classes: int) -> TextField:
        """The mean over the fields that are present; zeros where none is."""
        cosines, none, count = torch.zeros(n, classes + 1), torch.zeros(n, 2), torch.zeros(n)
        for field in fields:
            here = field.present.float()
            cosines, none = cosines + here[:, None] * field.cosines, none + here[:, None] * field.none
            count = count + here
        size = count.clamp(min=1)[:, None]
        return cls(cosines / size, count > 0, none / size)


def _best_sense(t: Tensor, word: Tensor, meanings: ClassMeanings) -> Tensor:
    """Highest cosine to another sense of a sample's own word, (n,); -inf where the word has one sense."""
    best = torch.full((len(t),), -torch.inf)
    senses, owner = meanings.senses, meanings.owner
    if senses is None or owner is None or not len(owner):
        return best
    size = max(1, CELLS // len(owner))
    for begin in range(0, len(t), size):
        rows = slice(begin, begin + size)
        other = (t[rows] @ senses.T).masked_fill_(owner[None] != word[rows, None], -torch.inf)
        best[rows] = other.max(1)[0]
    return best


def query_words(evidence: Evidence) -> Tensor:
    """The class whose word each sample was searched for, (n,): its web label, else the nearest class by its texts."""
    y, texts = evidence.answers[0], evidence.meanings.texts
    likeness = sum((t @ texts.T for t in evidence.texts), torch.zeros(len(evidence), len(texts)))
    return torch.where(y >= 0, y, likeness.argmax(1))


# --- who starts as none of these ------------------------------------------------------------------


def far_texts(field: TextField, share: float = NONE_SHARE) -> Tensor:
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


def named_other_things(answers: Sequence[Tensor], classes: int) -> Tensor:
    """Where some annotator answers none of these and none a class, (n,) bool; everywhere without annotators."""
    if not answers:
        return torch.ones((), dtype=torch.bool)
    given = torch.stack(list(answers))
    return (given == classes).any(0) & ~((given >= 0) & (given < classes)).any(0)


def doubtful_pictures(x: Tensor, y: Tensor, classes: int, fold: Tensor) -> Tensor:
    """Pictures of which a classifier of the labels, judged out of fold, knows neither the label nor another, (n,) bool.

    The tenth with the least probable best class, if their label is among the least probable quarter.
    """
    has = y >= 0
    if not has.any():
        return has
    target = F.one_hot(y.clamp(min=0), classes).float() * has[:, None]
    p = judge_folds(x, target, fold).logits.log_softmax(1)
    best, own = p.max(1)[0], p.gather(1, y.clamp(min=0)[:, None])[:, 0]
    least, unlikely = best[has].quantile(DOUBTED_BEST), own[has].quantile(DOUBTED_LABEL)
    return has & (best < least) & (own < unlikely)


def unknown_to_head(mass: Tensor, rival: Tensor, y: Tensor) -> Tensor:
    """Pictures in which the encoder's own head sees their rival, or neither their class nor another, (n,) bool.

    Of a class the head is asked if it names it for a tenth of the pictures with that label, and of all only if it
    names the label of most pictures in which it sees a class. At most the lower half of a class is unknown: ImageNet
    may have few of its kinds.

    Args:
        mass: `HeadKinds.masses`, of the classes, (n, C).
        rival: of what is not meant by them, (n, C).
        y: labels, (n,), -1 for none.
    """
    has, given = y >= 0, y.clamp(min=0)
    own, other = mass.gather(1, given[:, None])[:, 0], rival.gather(1, given[:, None])[:, 0]
    sees = mass.sum(1) >= SEEN_MASS
    right = sees & has & (mass.argmax(1) == y)
    out = has & (other > RIVAL_MASS) & (other > own)
    if right.sum() <= (sees & has).sum() / 2:
        return out
    for c in torch.bincount(y[has]).nonzero()[:, 0].tolist():
        mine = y == c
        if int(right[mine].sum()) >= HEAD_RECALL * int(mine.sum()):
            out |= mine & ~sees & (own < OWN_MASS) & (own <= own[mine].median())
    return out


class Words:
    """Single-label: P(z | words) with weights of every annotator and of every field, fitted together.

    With `fits`, (n, f), of an image-text model, a text that does not fit its picture counts less. With `shared` only
    none of these has biases.
    """

    def __init__(
        self, annotators: int, fields: int, classes: int, *, gated: bool, shared: bool = False
    ) -> None:
        m, states = fields, 1 if shared else classes + 1
        self.gate = torch.zeros(m if gated else 0)
        self.trust = torch.zeros(annotators)
        self.slope, self.none_slope = torch.full((m,), 6.0), torch.tensor([[-3.0, 0.0]]).repeat(m, 1)
        self.field_bias, self.bias = torch.zeros(m, states), torch.zeros(states)

    def logits(self, answers: Sequence[Tensor], fields: Sequence[TextField], fits: Tensor | None) -> Tensor:
        """(n, C + 1), from each annotator's log P(y | z), (n, C + 1), and the texts."""
        n, states = answers[0].shape
        weight = None if fits is None else text_weights(fits, self.gate)
        columns, rows = [torch.zeros(n, 0)], [torch.zeros(0, states)]
        for j, field in enumerate(fields):
            here = field.present.float() if weight is None else field.present * weight[:, j]
            columns += [here[:, None], here[:, None] * field.none]
            rows += [_last(self.field_bias[j][None], states), _last(self.none_slope[j][:, None], states)]
        # arrays of (n, C + 1) are what a fit spends its time on: one product, then sums in place
        out = torch.addmm(_last(self.bias, states), torch.cat(columns, 1), torch.cat(rows))
        for a, label in enumerate(answers):
            out.addcmul_(label, self.trust[a])
        for j, field in enumerate(fields):
            slope = self.slope[j] if weight is None else (self.slope[j] * weight[:, j])[:, None]
            out.addcmul_(field.cosines, slope)
        return out

    def fit(
        self,
        answers: Sequence[Tensor],
        fields: Sequence[TextField],
        fits: Tensor | None,
        q: Tensor,
        *,
        with_answers: bool = True,
        with_none: bool = True,
    ) -> None:
        """To the posterior, from where the parameters are; without those of answers or of none of these, if asked."""
        parameters = [self.slope, self.gate]
        parameters += [self.none_slope, self.field_bias, self.bias] if with_none else []
        parameters += [self.trust] if with_answers else []

        def value() -> Tensor:
            ridge = 1e-4 * (self.bias**2).mean()
            if fields:
                ridge = ridge + 1e-3 * (self.field_bias**2).mean()
            if len(self.gate):
                ridge = ridge + GATE_RIDGE * (self.gate**2).mean()
            return cross_entropy(self.logits(answers, fields, fits), q).mean() + ridge

        minimise(value, [p for p in parameters if p.numel()], 40)


def _last(values: Tensor, states: int) -> Tensor:
    """Values of the last states, zero for those before, (..., m) -> (..., K)."""
    return F.pad(values, (states - values.shape[-1], 0))


# --- texts, multi-label ---------------------------------------------------------------------------


class TagTexts(NamedTuple):
    """The texts of samples, compared with the classes."""

    cosines: list[Tensor]  # of each field to each meaning, (n, C)
    present: list[Tensor]  # (n,) bool
    fits: Tensor | None  # of an image-text model, (n, f)

    @classmethod
    def of(cls, evidence: Evidence, joint: Joint | None) -> TagTexts:
        """Compared with the class texts, and with the bare names where they are there."""
        meanings = [part for part in (evidence.meanings.texts, evidence.meanings.names) if part is not None]
        cosines = [t @ meaning.T for t in evidence.texts for meaning in meanings]
        present = [t.any(1) for t in evidence.texts for _ in meanings]
        return cls(cosines, present, None if joint is None else joint.fits)


class TagWords:
    """Multi-label: log-odds of each class from tags and fields; the tags' weight stays 1, the fields' are fitted.

    With `fits`, (n, f), of an image-text model, a text that does not fit its picture counts less.
    """

    def __init__(self, read: TagTexts, bias: Tensor) -> None:
        fields = len(read.cosines)
        self.gate = torch.zeros(0 if read.fits is None else read.fits.shape[1])
        self.slope = torch.full((fields,), 5.0)
        self.field_bias, self.bias = torch.zeros(fields, len(bias)), bias

    def logits(self, tags: Tensor, read: TagTexts) -> Tensor:
        """(n, C), from the tags' evidence, (n, C), and the texts."""
        weight = None if read.fits is None else text_weights(read.fits, self.gate)
        columns = [torch.zeros(len(tags), 0)]
        for j, present in enumerate(read.present):
            # a field may have several cosines, one after the other
            column = 0 if weight is None else j * weight.shape[1] // len(read.cosines)
            columns.append((present.float() if weight is None else present * weight[:, column])[:, None])
        out = torch.addmm(self.bias, torch.cat(columns, 1), self.field_bias).add_(tags)
        for j, cosine in enumerate(read.cosines):  # 0 where there is no text
            out.addcmul_(cosine, self.slope[j] if weight is None else self.slope[j] * columns[j + 1])
        return out

    def fit(self, tags: Tensor, read: TagTexts, q: Tensor) -> None:
        """To the posterior, from where the parameters are."""
        parameters = [p for p in (self.slope, self.field_bias, self.bias, self.gate) if p.numel()]

        def value() -> Tensor:
            loss = cross_entropy(self.logits(tags, read), q, multi_label=True).mean()
            loss = loss + 1e-3 * (self.field_bias**2).sum()
            return loss + GATE_RIDGE * (self.gate**2).mean() if len(self.gate) else loss

        minimise(value, parameters, 60)


# --- pictures -------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """Samples as the picture's model takes them."""

    x: Tensor  # centred features, (n, d)
    y: Tensor  # web labels, (n,); not read by a classifier
    joint: Joint | None  # what an image-text model says
    offsets: Tensor | None  # its logits whose scales are fitted, (n, K, m)


@dataclass(frozen=True)
class PictureClassifier:
    """Logits of pictures by a linear classifier of the posterior: the mean over the folds."""

    model: Linear

    @classmethod
    def fitted(
        cls, seen: Seen, q: Tensor, fold: Tensor, *, weight: Tensor | None = None, multi_label: bool = False
    ) -> tuple[PictureClassifier, Tensor]:
        """To a posterior, (n, K); with the logits of the fit's own samples, out of fold."""
        scores = judge_folds(seen.x, q, fold, offsets=seen.offsets, weight=weight, multi_label=multi_label)
        return cls(scores.model), scores.logits

    def logits(self, seen: Seen) -> Tensor:
        """(n, K)."""
        return self.model(seen.x, seen.offsets)

    @property
    def zero_shot_weight(self) -> float:
        """Scale of the image-text model's likeness of picture and class, in logits per standard deviation."""
        return float(self.model.scales[0])


class Centres(NamedTuple):
    """Where the pictures of each web label lie."""

    sums: Tensor  # of their centred features, (C, d)
    sizes: Tensor  # how many there are, (C,)

    @classmethod
    def of(cls, x: Tensor, y: Tensor, classes: int) -> Centres:
        """Of pictures, (n, d), by their web labels, (n,), -1 for none."""
        has = y >= 0
        sums = torch.zeros(classes, x.shape[1]).index_add_(0, y[has], x[has])
        return cls(sums, torch.bincount(y[has], minlength=classes))

    def cosines(self, x: Tensor, y: Tensor) -> Tensor:
        """Cosine of pictures to the centres, less its mean over classes, (n, d), (n,) -> (n, C).

        A picture is left out of the centre of its own label (-1: none). 0 for a class without pictures, and for all
        classes where the own label has no other picture: the other classes would have nothing to be compared with.
        """
        cosines = F.normalize(x, dim=1) @ F.normalize(self.sums, dim=1).T
        rows = (y >= 0).nonzero()[:, 0]
        own = y[rows]
        cosines[rows, own] = F.cosine_similarity(x[rows], self.sums[own] - x[rows])
        cosines -= cosines.mean(1, keepdim=True)
        cosines[:, self.sizes == 0] = 0.0
        cosines[rows] *= (self.sizes[own] > 1)[:, None]
        return cosines


@dataclass(frozen=True)
class PictureGuess:
    """Logits of pictures by few numbers: likeness to class texts, to centres, and by an image-text model.

    Attributes:
        regression: From pictures to texts, (d, d_t).
        class_texts: (C, d_t).
        centres: Of the web labels, where they are compared too.
        sharpness: Of each guess.
    """

    regression: Tensor
    class_texts: Tensor
    centres: Centres | None
    sharpness: Tensor

    @classmethod
    def regressed(
        cls, seen: Seen, texts: Sequence[Tensor], class_texts: Tensor, fold: Tensor,
        centres: Centres | None = None,
    ) -> tuple[PictureGuess, list[Tensor]]:  # fmt: skip
        """Learnt on pairs of picture and text; with the guesses of the fit's own samples, out of fold."""
        predicted, regression = picture_to_text(seen.x, texts, fold)
        start = [TEXT_GUESS] if centres is None else [TEXT_GUESS, TEXT_GUESS]
        start += [] if seen.joint is None else [ZERO_SHOT]
        guess = cls(regression, class_texts, centres, torch.tensor(start))
        return guess, guess.guesses(predicted, seen)

    def guesses(self, predicted: Tensor, seen: Seen) -> list[Tensor]:
        """One for each number, (n, C), by texts that were predicted for the pictures, (n, d_t)."""
        guesses = [text_guess(predicted, self.class_texts)]
        if self.centres is not None:
            guesses.append(self.centres.cosines(seen.x, seen.y))
        if seen.joint is not None:
            guesses.append(seen.joint.cosines)
        return guesses

    def sharpened(self, guesses: Sequence[Tensor], target: Tensor) -> PictureGuess:
        """With the sharpness under which guesses, (n, C) each, predict targets, (n, C + 1), best; as it is for none."""
        sharpness, named = self.sharpness.clone(), target[:, :-1]

        def value() -> Tensor:
            return cross_entropy(_sum(guesses, sharpness), named).mean() + 1e-4 * (sharpness**2).sum()

        if not says_nothing(target):
            minimise(value, [sharpness], 30)
            sharpness = sharpness.clamp(min=0)
        return replace(self, sharpness=sharpness)

    def joined(self, guesses: Sequence[Tensor]) -> Tensor:
        """Logits with none of these, one in ten, (n, C) each -> (n, C + 1)."""
        logits, share = _sum(guesses, self.sharpness), torch.tensor([0.9, 0.1]).log()
        return torch.cat([logits + share[0], logits.logsumexp(1, keepdim=True) + share[1]], 1)

    def logits(self, seen: Seen) -> Tensor:
        """(n, C + 1)."""
        return self.joined(self.guesses(seen.x @ self.regression, seen))

    @property
    def zero_shot_weight(self) -> float:
        """Scale of the image-text model's likeness of picture and class, in logits per standard deviation."""
        return float(self.sharpness[-1])


def _sum(guesses: Sequence[Tensor], sharpness: Tensor) -> Tensor:
    return sum((scale * guess for scale, guess in zip(sharpness, guesses, strict=True)), torch.zeros(()))


def says_nothing(target: Tensor) -> bool:
    """Whether no first target, (n, K), prefers a state: there is neither a label nor a text."""
    return bool((target == target[:, :1]).all())


class Regressed(NamedTuple):
    """Pictures in the text space."""

    predicted: Tensor  # out of fold, (n, d_t)
    B: Tensor  # mean of the folds' regressions, (d, d_t), for samples that are in none


def picture_to_text(x: Tensor, texts: Sequence[Tensor], fold: Tensor, *, ridge: float = 1e-3) -> Regressed:
    """Where each picture lies in the text space: ridge regression on the crawl's own pairs.

    Judged out of fold; the texts are the mean of a sample's fields. Reads no label. O(n d^2 + d^3).

    Args:
        x: (n, d), centred.
        texts: fields, (n, d_t) each; samples without any text are predicted, not learnt from.
        fold: (n,).
        ridge: penalty per sample.
    """
    if not texts:
        return Regressed(torch.zeros(len(x), 1), torch.zeros(x.shape[1], 1))
    t = F.normalize(torch.stack(list(texts)).sum(0), dim=1)
    out, here, regressions = torch.zeros_like(t), t.any(1), list[Tensor]()
    for f in range(int(fold.max()) + 1 if len(fold) else 0):
        rest = (fold != f) & here
        if not rest.any():
            continue
        gram = x[rest].T @ x[rest] + ridge * float(rest.sum()) * torch.eye(x.shape[1])
        mean = t[rest].mean(0)
        B = torch.linalg.solve(gram, x[rest].T @ (t[rest] - mean))  # (d, d_t)
        out[fold == f] = x[fold == f] @ B
        regressions.append(B)
    mean_B = torch.stack(regressions).mean(0) if regressions else torch.zeros(x.shape[1], t.shape[1])
    return Regressed(out, mean_B)


def text_guess(predicted: Tensor, class_texts: Tensor) -> Tensor:
    """Cosine of each predicted text to each class text, both less their means, (n, C).

    Args:
        predicted: (n, d_t), by `picture_to_text`; (n, 1) without any text.
        class_texts: (C, d_t).
    """
    if predicted.shape[1] != class_texts.shape[1]:
        return torch.zeros(len(predicted), len(class_texts))
    classes = F.normalize(class_texts - class_texts.mean(0), dim=1)
    return F.normalize(predicted, dim=1) @ classes.T
