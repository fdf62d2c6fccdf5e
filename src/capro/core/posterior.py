"""The method `plus`: which label is true, given the web label, the texts and the picture? One estimator. Pure.

    posterior = SingleLabelPosterior(folds=3, rounds=6, seed=0).fit(evidence)
    posterior.out_of_fold.q                    # (n, C + 1) of the fit's samples, the last column is "none of these"
    posterior.predict_proba(others)            # of samples that the fit has not seen

The true class z of a sample is unknown: one of C classes, or none of these (state C). There are two
views of it. The words: answers of annotators (the web label) and text fields, which depend on each other (a query word
stands in the text as well), so one model reads them together. The picture, which is nearly independent of the
words once z is known. Each view has a classifier, and the posterior joins them:

    q(z) ~ P(z | words) P(z | picture) / pi(z)

EM: q from both; then both classifiers are fitted to q. What is maximised is the agreement of the views,
sum_i log sum_z P(z | words_i) P(z | picture_i) / pi(z), the likelihood of seeing these words with this
picture. A classifier that has seen a label confirms it, so both are always judged out of fold, and the
sharpness of the picture's is the one under which held-out pictures agree best with their words.

P(y | z) of each annotator is counted from q in each round (`annotators`). The words have a ridge-bound correction V on
the text vectors. None of these starts from pictures that nothing knows (`first_targets`), and from texts that are far
from every class, or nearer to another sense of the query word, and name other things.

How far the views depend on each other beyond z cannot be seen without truth: EM explains all agreement by z.
The posterior that is reported is therefore `cautious_pool`, which counts what both may share once.

Multi-label: the same with one hidden bit per (sample, class); a tag's reliability is how often it is
given where the class is shown (hit rate) and where it is not (false rate), per class.

Cost: rounds x folds linear classifiers on n features, O(n d C) per optimiser step; beyond the inputs
O(n C) memory. Where that does not fit, fit to a random part of the samples and judge the others block by block. Where a
part has few samples of a class, all classes share their weights (`centres`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

from capro.core.annotators import LOW, Annotator, LabelTable, SharedLabelTable, TagRates
from capro.core.evidence import Evidence, Joint, JointSpace
from capro.core.linear import (
    NO_CALIBRATION,
    TINY,
    Calibration,
    Centring,
    Linear,
    assign_folds,
    calibrate,
    judge_folds,
    minimise,
)
from capro.core.views import (
    Centres,
    PictureClassifier,
    PictureGuess,
    Seen,
    TagTexts,
    TagWords,
    TextField,
    Words,
    doubtful_pictures,
    far_texts,
    named_other_things,
    query_words,
    says_nothing,
    unknown_to_head,
)

TEXT_DECAY = 1e-3  # of V
ENOUGH_CHECKS = 50  # samples, drawn at random and decided by a person, from which they rescale the posterior
CAUTION = 0.6  # multi-label: of the log-odds of texts and picture, what is reported
ANCHORS_PER_CLASS, ANCHORS_SHARE = 10, 0.25  # at least and at most, for a start from them


class Views(NamedTuple):
    """What is believed of some samples.

    Attributes:
        q: calibrated posterior, (n, C + 1) with none of these last; multi-label (n, C).
        words: log P(z | words), (n, C + 1); multi-label its log-odds, (n, C), as cautious as q.
        picture: log P(z | picture); multi-label its log-odds beyond the prior.
    """

    q: Tensor
    words: Tensor
    picture: Tensor


class Posterior:
    """The interface of both estimators, and what they share.

    Args:
        folds: Of the judging out of fold.
        rounds: Of EM; 0 for the estimator's own number.
        seed: Of the folds.

    Attributes:
        out_of_fold: Beliefs in the samples of the fit, by classifiers that have not seen them.
        prior: pi, (C + 1,); multi-label (C,).
        annotators: How reliable each of them is, as the last posterior has it.
        answer_weights: w of each annotator, (a,); multi-label how often a given tag is right.
        field_weights: a_f of the text fields, (f, 1); multi-label (f, 1 or 2), the second with class names.
        fit_weights: Of each field, how much more a text counts that fits its picture, (f,); None without an
            image-text model.
        zero_shot_weight: Scale of that model's likeness of picture and class, in logits per standard deviation.
        calibration: Of the log-probabilities (multi-label: log-odds) that are reported; learnt from a person's answers
            to questions that were drawn at random, where there are enough.
    """

    multi_label: ClassVar[bool]
    ROUNDS: ClassVar[int]

    calibration: Calibration = NO_CALIBRATION

    out_of_fold: Views
    prior: Tensor
    annotators: Sequence[Annotator]
    answer_weights: Tensor
    field_weights: Tensor
    picture: PictureClassifier | PictureGuess
    words: Words | TagWords

    def __init__(self, *, folds: int = 3, rounds: int = 0, seed: int = 0) -> None:
        self.folds, self.rounds, self.seed = folds, rounds or self.ROUNDS, seed

    def fit(self, evidence: Evidence) -> Self:
        """Fit to all samples of the evidence."""
        raise NotImplementedError

    def judge(self, evidence: Evidence) -> Views:
        """Beliefs in samples that the fit has not seen: with the mean of the folds' classifiers."""
        raise NotImplementedError

    def predict_proba(self, evidence: Evidence) -> Tensor:
        """The posterior of samples that the fit has not seen, (n, C + 1) with none of these last, or (n, C)."""
        return self.judge(evidence).q

    def without_samples(self) -> Self:
        """What was fitted without the samples of the fit: small, to be sent to other processes."""
        other = copy(self)
        del other.out_of_fold
        return other

    @property
    def fit_weights(self) -> Tensor | None:
        return None if self._space is None else self.words.gate

    @property
    def zero_shot_weight(self) -> float | None:
        return None if self._space is None else self.picture.zero_shot_weight

    def _calibrate(self, evidence: Evidence, reported: Views) -> Views:
        """Learn the calibration, where people have checked enough samples, and apply it."""
        settled = evidence.settled
        if settled is not None and len(checks := settled.checks) >= ENOUGH_CHECKS:
            logits = self._logits(reported.q[settled.at[checks]])
            self.calibration = calibrate(
                logits, settled.q[checks], multi_label=self.multi_label, ridge=1 / len(checks)
            )
        return self._final(evidence, reported)

    def _final(self, evidence: Evidence, reported: Views) -> Views:
        """Calibrated, and with what people have decided."""
        if self.calibration != NO_CALIBRATION:
            logits = self.calibration(self._logits(reported.q))
            q = logits.sigmoid() if self.multi_label else logits.softmax(1)
            reported = reported._replace(q=q)
        return reported._replace(q=evidence.settle(reported.q))

    def _logits(self, q: Tensor) -> Tensor:
        return torch.logit(q, eps=TINY) if self.multi_label else q.clamp(min=TINY).log()

    def _measure(self, evidence: Evidence) -> None:
        """The scales of features and of an image-text model's space, the same for samples outside of the fit."""
        self._centring = Centring.of(evidence.pictures)
        self._space = None if evidence.joint is None else JointSpace.measured(evidence.joint)

    def _see(self, evidence: Evidence) -> Seen:
        joint: Joint | None = None
        if self._space is not None and evidence.joint is not None:
            joint = self._space(evidence.joint)
        offsets = None if joint is None else joint.offsets(multi_label=self.multi_label)
        return Seen(self._centring(evidence.pictures), evidence.answers[0], joint, offsets)


def _answers(annotators: Sequence[Annotator], evidence: Evidence) -> list[Tensor]:
    """What the answers of each annotator say, (n, K) each."""
    return [each.evidence(y) for each, y in zip(annotators, evidence.answers, strict=True)]


def _fitted(annotators: Sequence[Annotator], evidence: Evidence, q: Tensor) -> list[Annotator]:
    """The annotators, each as reliable as a posterior, (n, K), has it."""
    return [each.fitted(q, y) for each, y in zip(annotators, evidence.answers, strict=True)]


# --- joining the views ----------------------------------------------------------------------------

Pool = Callable[[Tensor, Tensor, Tensor], Tensor]  # words, picture, prior -> posterior


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


def among_classes(words: Tensor, picture: Tensor, prior: Tensor, *, by: Pool) -> Tensor:
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

    @classmethod
    def fitted(cls, logits: Tensor, words: Tensor, prior: Tensor, *, shared: bool = False) -> Temperature:
        """The sharpness and the biases that make held-out pictures agree best with words.

        Args:
            logits: of the picture, out of fold, (n, K).
            words: log P(z | words), (n, K).
            prior: pi, (K,).
            shared: no state has a bias of its own.
        """
        sharp, bias = torch.ones(()), torch.zeros(logits.shape[1])

        def value() -> Tensor:
            return 1e-3 * (bias**2).sum() - agreement(words, cls(sharp, bias)(logits), prior).mean()

        minimise(value, [sharp] if shared else [sharp, bias], 30)
        return cls(sharp.clamp(min=0), bias)

    def __call__(self, logits: Tensor) -> Tensor:
        """(n, K) -> (n, K)."""
        return F.log_softmax(self.sharp * logits + self.bias, 1)


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


def log_odds(p: Tensor) -> Tensor:
    """Log-odds of a probability, kept finite."""
    return torch.logit(p.clamp(LOW, 0.99))


# --- single-label ---------------------------------------------------------------------------------


def worth_a_start(anchors: Tensor, classes: int) -> bool:
    """Whether the picture's first classifier should come from anchors, (n,) bool, or from the label-free guess.

    Too few of them teach no classifier, and nearly all samples are no choice: it would learn the wrong labels.

    >>> worth_a_start(torch.arange(100) < 20, 2), worth_a_start(torch.arange(100) < 20, 4)
    (True, False)
    """
    chosen = int(anchors.sum())
    return classes * ANCHORS_PER_CLASS <= chosen <= len(anchors) * ANCHORS_SHARE


@dataclass(frozen=True)
class _Samples:
    """Samples of an evidence, compared with the classes."""

    evidence: Evidence
    seen: Seen
    word: Tensor  # the class that each was searched for, (n,)
    fields: list[TextField]
    fits: Tensor | None  # of each text to its picture, by an image-text model, (n, f)


class SingleLabelPosterior(Posterior):
    """Posterior of the true class of each sample, or of none of these.

    With `centres` there are so many classes that a fit sees few samples of each. With its own biases and its own
    picture classifier, a class that the fit never saw would not be believed anywhere, so all classes share their
    weights: P(y | z), the prior, the weights of answers and texts and the sharpness of pictures are single numbers,
    which some hundred samples fix. Pictures are compared with the centre of each class and with the class texts. None
    of these is what the words say of it, texts far from every class: no picture classifier could confirm it.

    Args:
        folds: See `Posterior`.
        rounds: See `Posterior`.
        seed: See `Posterior`.
        centres: Of the pictures of each web label over all samples, not only the fit's, in features that are centred
            as `Centring.of` the fit's.
    """

    multi_label = False
    ROUNDS = 6

    words: Words

    def __init__(
        self, *, folds: int = 3, rounds: int = 0, seed: int = 0, centres: Centres | None = None
    ) -> None:
        super().__init__(folds=folds, rounds=rounds, seed=seed)
        self.centres = centres

    def fit(self, evidence: Evidence) -> Self:
        evidence, C, shared = evidence.take(slice(None)), evidence.classes, self.centres is not None
        self._measure(evidence)
        samples = self._compare(evidence)
        fold = assign_folds(len(evidence), self.folds, self.seed)
        target, none = first_targets(samples, fold, by_pictures=not shared)
        target = evidence.settle(target)

        self.prior = even_prior(C, float((target[:, -1].sum() + 1) / (len(target) + 2)) if shared else 0.1)
        table = SharedLabelTable if shared else LabelTable
        self.annotators = [table.even(C), *(LabelTable.silent(C, y) for y in evidence.answers[1:])]
        answers = _answers(self.annotators, evidence)
        guess, weight = None, None if shared else _anchor_weights(evidence, none)
        if weight is None:
            guess = PictureGuess.regressed(
                samples.seen, evidence.texts, evidence.meanings.texts, fold, self.centres
            )
        logits = self._look(samples, target, fold, guess, weight)
        guess = guess if shared else None  # arrays of (n, C) that no later round reads
        self.words = Words(len(answers), len(samples.fields), C, gated=self._space is not None, shared=shared)
        self.words.fit(
            answers, samples.fields, samples.fits, 0.9 * target + 0.1 / (C + 1), with_answers=False
        )
        self.words.trust.fill_(1.0)

        answered = any(bool((y >= 0).any()) for y in evidence.answers)
        self._sharpness: Temperature | None = None
        self._correction: Linear | None = None  # V
        residual = torch.zeros(len(evidence), C + 1)
        # where pictures are all that is known, there is no other view to learn from
        rounds = 1 if self._space is not None and says_nothing(target) else self.rounds
        del target
        for turn in range(rounds):
            words = (self.words.logits(answers, samples.fields, samples.fits) + residual).log_softmax(1)
            self._read = self.annotators  # those that the words were read with
            if turn:
                self._sharpness = Temperature.fitted(logits, words, self.prior, shared=shared)
            picture = self._sharpened(logits)
            q = evidence.settle(self._pool(words, picture, pool))
            self.prior = self.prior if shared else state_prior(q)
            self.annotators = _fitted(self.annotators, evidence, q)
            if turn == rounds - 1:
                break
            answers = _answers(self.annotators, evidence)
            self.words.fit(
                answers, samples.fields, samples.fits, q, with_answers=answered, with_none=not shared
            )
            if turn and samples.fields and not shared:
                base = self.words.logits(answers, samples.fields, samples.fits)
                vectors = self._text_vectors(evidence)
                residual, self._correction = judge_folds(vectors, q, fold, base=base, decay=TEXT_DECAY)
            logits = self._look(samples, q, fold, guess)
        reported = Views(self._pool(words, picture, cautious_pool), words, picture)
        self.out_of_fold = self._calibrate(evidence, reported)
        self.answer_weights, self.field_weights = self.words.trust, self.words.slope[:, None]
        return self

    def judge(self, evidence: Evidence) -> Views:
        evidence = evidence.take(slice(None))
        samples = self._compare(evidence)
        logits = self.words.logits(_answers(self._read, evidence), samples.fields, samples.fits)
        if self._correction is not None:
            logits = logits + self._correction(self._text_vectors(evidence))
        words, picture = logits.log_softmax(1), self._sharpened(self.picture.logits(samples.seen))
        return self._final(evidence, Views(self._pool(words, picture, cautious_pool), words, picture))

    def _measure(self, evidence: Evidence) -> None:
        super()._measure(evidence)
        self._text_means = [t.sum(0) / t.any(1).sum().clamp(min=1) for t in evidence.texts]

    def _compare(self, evidence: Evidence) -> _Samples:
        seen, word = self._see(evidence), query_words(evidence)
        fields = [TextField.of(t, evidence.meanings, word) for t in evidence.texts]
        return _Samples(evidence, seen, word, fields, None if seen.joint is None else seen.joint.fits)

    def _look(
        self,
        samples: _Samples,
        q: Tensor,
        fold: Tensor,
        guess: tuple[PictureGuess, list[Tensor]] | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Fit the picture's model to a posterior; its logits of the fit's own samples, out of fold."""
        if guess is None:
            self.picture, logits = PictureClassifier.fitted(samples.seen, q, fold, weight=weight)
            return logits
        start, guesses = guess
        self.picture = start.sharpened(guesses, q)
        return self.picture.joined(guesses)

    def _sharpened(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1) if self._sharpness is None else self._sharpness(logits)

    def _pool(self, words: Tensor, picture: Tensor, by: Pool) -> Tensor:
        if self.centres is None:
            return by(words, picture, self.prior)
        return among_classes(words, picture, self.prior, by=by)

    def _text_vectors(self, evidence: Evidence) -> Tensor:
        """All fields side by side, each less its mean where there is a text, (n, f d_t)."""
        pairs = zip(evidence.texts, self._text_means, strict=True)
        return torch.cat([(t - mean) * t.any(1, keepdim=True) for t, mean in pairs], 1)


def first_targets(samples: _Samples, fold: Tensor, *, by_pictures: bool) -> tuple[Tensor, Tensor]:
    """What the first classifiers are fitted to, (n, C + 1), and who starts as none of these, (n,).

    On a crawl every text names its class, since that is how the picture was found. So pictures start it as well, and
    a text that names a class is no evidence against it.
    """
    evidence, seen, classes = samples.evidence, samples.seen, samples.evidence.classes
    y, others = evidence.answers[0], evidence.answers[1:]
    field = TextField.mean(samples.fields, len(y), classes)
    none = far_texts(field) & named_other_things(others, classes)
    if by_pictures:
        none |= doubtful_pictures(seen.x, y, classes, fold)
        if evidence.head is not None:
            none |= unknown_to_head(*evidence.head.masses(evidence.pictures), y)
    target = F.one_hot(torch.where(none, classes, samples.word), classes + 1).float()
    target[(y < 0) & ~field.present] = 1 / (classes + 1)  # nothing known
    return target, none


def _anchor_weights(evidence: Evidence, none: Tensor) -> Tensor | None:
    """Of samples in the picture's first classifier, (n,); None where anchors are no start."""
    if evidence.anchors is None:
        return None
    anchors = evidence.anchors & ~none
    if not worth_a_start(anchors, evidence.classes):
        return None
    weight: Tensor = anchors.float() + 0.5 * none.float() + 1e-9
    if evidence.settled is not None:
        weight[evidence.settled.whole] = 1.0
    return weight


# --- multi-label ----------------------------------------------------------------------------------


class MultiLabelPosterior(Posterior):
    """Posterior of every (sample, class) pair.

    The start is a classifier of the tags judged out of fold; the words are fitted to it, so a field
    that only repeats the tags gets no weight. Log-odds of a pair: words + picture beyond the prior.

    Tags, texts and picture make the same mistakes (an album's tags stand in its texts, and the picture's classifier
    has learnt them), which EM takes for agreement. What is reported is therefore more cautious than what EM fits to:
    tags count by how often they are right, as EM has it, and texts and picture `CAUTION`; where a label was not given,
    the picture half of that.
    """

    multi_label = True
    ROUNDS = 4

    words: TagWords

    def fit(self, evidence: Evidence) -> Self:
        evidence = evidence.take(slice(None))
        self._measure(evidence)
        seen, given = self._see(evidence), evidence.answers[0].clamp(min=0).float()
        texts, fold = TagTexts.of(evidence, seen.joint), assign_folds(len(evidence), self.folds, self.seed)
        self.prior = given.mean(0).clamp(min=1e-3)
        self.annotators = [TagRates.even(evidence.classes) for _ in evidence.answers]
        self.words = TagWords(texts, log_odds(self.prior))
        self.picture, logits = PictureClassifier.fitted(seen, evidence.settle(given), fold, multi_label=True)
        tags = _sum_of_answers(self.annotators, evidence)
        self.words.fit(tags, texts, evidence.settle(logits.sigmoid()))
        for turn in range(self.rounds):
            words, picture = self.words.logits(tags, texts), logits - log_odds(self.prior)
            q = evidence.settle((words + picture).sigmoid())
            self._read = self.annotators  # those that the words were read with
            self.annotators = _fitted(self.annotators, evidence, q)
            if turn == self.rounds - 1:
                break
            tags = _sum_of_answers(self.annotators, evidence)
            self.words.fit(tags, texts, q)
            self.prior = q.mean(0)
            self.picture, logits = PictureClassifier.fitted(seen, q, fold, multi_label=True)
        self.answer_weights = (q * given).sum() / given.sum().clamp(min=1) * torch.ones(len(evidence.answers))
        self.out_of_fold = self._calibrate(evidence, self._reported(evidence, words, picture))
        self.field_weights = self.words.slope.reshape(
            len(evidence.texts), 1 if evidence.meanings.names is None else 2
        )
        return self

    def judge(self, evidence: Evidence) -> Views:
        evidence = evidence.take(slice(None))
        seen = self._see(evidence)
        tags = _sum_of_answers(self._read, evidence)
        words = self.words.logits(tags, TagTexts.of(evidence, seen.joint))
        picture = self.picture.logits(seen) - log_odds(self.prior)
        return self._final(evidence, self._reported(evidence, words, picture))

    def _reported(self, evidence: Evidence, words: Tensor, picture: Tensor) -> Views:
        prior, tags = log_odds(self.prior), _sum_of_answers(self._read, evidence)
        words = prior + self.answer_weights[0] * tags + CAUTION * (words - prior - tags)
        share = torch.where(evidence.answers[0] > 0, CAUTION, CAUTION / 2)
        return Views((words + share * picture).sigmoid(), words, picture)


def _sum_of_answers(annotators: Sequence[Annotator], evidence: Evidence) -> Tensor:
    return sum(_answers(annotators, evidence), torch.zeros(()))
