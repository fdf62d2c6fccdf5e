"""The evidence of samples, which the estimator of the method plus reads. Pure.

Web label, texts, picture; where there is an image-text model (CLIP, SigLIP), what it says in its own space; and what a
person has settled. An `Evidence` may hold memory maps of all samples: `take` reads some rows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.core.linear import TINY

FAR = 3.0  # standard deviations beyond which a text fits its picture no worse, or better

Array = Any  # a tensor, or an array of numpy that may be a memory map
Rows = slice | Tensor | NDArray[Any]


def take(array: Array, rows: Rows = slice(None)) -> Tensor:
    """Some rows of an array that may be a memory map, as a tensor."""
    return array[rows] if isinstance(array, Tensor) else torch.from_numpy(np.array(array[rows]))


@dataclass(frozen=True)
class ClassMeanings:
    """What is known of the classes.

    Attributes:
        texts: s^c, (C, d_t), unit rows.
        names: Vectors of the bare class names, (C, d_t): multi-label, a second cosine per text field.
        senses: Texts of the other senses of class names, (m, d_t): single-label.
        owner: The class that each of them belongs to, (m,).
    """

    texts: Tensor
    names: Tensor | None = None
    senses: Tensor | None = None
    owner: Tensor | None = None


@dataclass(frozen=True)
class Settled:
    """What a person has settled of some samples.

    Attributes:
        at: Their numbers, ascending, (m,).
        q: Probabilities of each state, (m, K), nan where nothing is settled.
        random: Whether the sample was drawn at random, (m,): only such answers tell how good scores are. None: none.
    """

    at: Tensor
    q: Tensor
    random: Tensor | None = None

    @property
    def whole(self) -> Tensor:
        """Samples of which every state is settled, (k,)."""
        return self.at[~self.q.isnan().any(1)]

    def take(self, rows: Rows, n: int) -> Settled:
        """Of some of n samples."""
        asked = torch.arange(n)[rows]
        at = torch.isin(asked, self.at).nonzero()[:, 0]
        own = torch.searchsorted(self.at, asked[at])
        return Settled(at, self.q[own], None if self.random is None else self.random[own])

    @property
    def checks(self) -> Tensor:
        """Places in `at` of the samples that were drawn at random and settled wholly, (k,)."""
        random = torch.zeros(len(self.at), dtype=torch.bool) if self.random is None else self.random
        return (random & ~self.q.isnan().any(1)).nonzero()[:, 0]

    def over(self, q: Tensor) -> Tensor:
        """A posterior, (n, K), with what is settled in its place.

        >>> settled = Settled(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
        >>> settled.over(torch.tensor([[0.6, 0.4], [0.5, 0.5]])).tolist()
        [[0.0, 1.0], [0.5, 0.5]]
        """
        return q.index_copy(0, self.at, torch.where(self.q.isnan(), q[self.at], self.q))


@dataclass(frozen=True)
class JointVectors:
    """Samples and classes in the one space of an image-text model; unit rows, zero where there is no text.

    Attributes:
        pictures: (n, d_j).
        prompts: Of the classes, (C, d_j).
        texts: Each field's text vectors, (n, d_j).
    """

    pictures: Array
    prompts: Tensor
    texts: Sequence[Array] = ()


@dataclass(frozen=True)
class HeadKinds:
    """The classifier that an encoder was trained with, and which of its k classes are kinds of ours.

    Attributes:
        weight: (k, d).
        bias: (k,).
        own: Whether a class of the head is a kind of each class, (k, C) in {0, 1}.
        rival: The same for what is not meant by each class; 0 where it is a kind of a class that is wanted.
    """

    weight: Tensor
    bias: Tensor
    own: Tensor
    rival: Tensor

    def masses(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Probability that the head puts below each class, and below its rivals, (n, d) -> (n, C) each."""
        p = (pictures @ self.weight.T + self.bias).softmax(1)
        return p @ self.own, p @ self.rival


@dataclass(frozen=True)
class Evidence:
    """What is known of n samples and of the C classes that they may show.

    Attributes:
        pictures: Features v, (n, d).
        texts: Each field's text vectors, (n, d_t), unit rows, zero where there is no text. No field may be made from
            pictures (enhanced texts): the views would no longer be independent.
        answers: Of each annotator, (n,) with -1 for silence and C for none of these; multi-label (n, C) in {0, 1}.
            The first is the web label, whose word the sample was searched for. All silent works: the label-free start.
        meanings: Of the classes.
        anchors: Single-label: samples whose text means their class, (n,) bool: only where the picture's first
            classifier comes from. None: it starts from a guess that reads no label.
        joint: The space of an image-text model, where there is one.
        settled: What a person has decided: fixed in the posterior, and so in everything that is fitted to it.
        head: Single-label: the encoder's own classifier, where the pictures are its features.
    """

    pictures: Array
    texts: Sequence[Array]
    answers: Sequence[Array]
    meanings: ClassMeanings
    anchors: Array | None = None
    joint: JointVectors | None = None
    settled: Settled | None = None
    head: HeadKinds | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def classes(self) -> int:
        """C."""
        return len(self.meanings.texts)

    def take(self, rows: Rows) -> Evidence:
        """The evidence of some samples, as tensors."""
        joint = self.joint
        if joint is not None:
            texts = [take(field, rows) for field in joint.texts]
            joint = replace(joint, pictures=take(joint.pictures, rows), texts=texts)
        return Evidence(
            take(self.pictures, rows),
            [take(field, rows) for field in self.texts],
            [take(answers, rows) for answers in self.answers],
            self.meanings,
            None if self.anchors is None else take(self.anchors, rows),
            joint,
            None if self.settled is None else self.settled.take(rows, len(self)),
            self.head,
        )

    def settle(self, q: Tensor) -> Tensor:
        """A posterior, (n, K), with what a person has decided in its place."""
        return q if self.settled is None else self.settled.over(q)


# --- an image-text model --------------------------------------------------------------------------


class Joint(NamedTuple):
    """Evidence of an image-text model, each part in its standard deviations.

    Such a model has a picture and a text tower that end in one space. Two things follow beside the features: which
    class prompt a picture is near (zero-shot), an offset of the picture's classifier; and whether a text fits its
    own picture, which says how much that text counts. The weights of both are fitted in EM with all others, so a
    text tower that knows nothing gets none.
    """

    cosines: Tensor  # (n, C): picture to class prompt, less the class's mean
    best: Tensor  # (n,): the best of them, for none of these
    fits: Tensor  # (n, f): each field's text to its own picture; 0 where there is no text

    def offsets(self, *, multi_label: bool = False) -> Tensor:
        """Logits whose scales are fitted, (n, C, 1); single-label (n, C + 1, 2): the classes, and none of these."""
        if multi_label:
            return self.cosines[:, :, None]
        n, C = self.cosines.shape
        out = torch.zeros(n, C + 1, 2)
        out[:, :C, 0], out[:, C, 1] = self.cosines, self.best
        return out


class Spread(NamedTuple):
    """Mean and standard deviation of some values."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, values: Tensor, here: Tensor) -> Spread:
        """Of values, (n,), over the samples that have one."""
        count = here.sum().clamp(min=1)
        mean = (values * here).sum() / count
        away = (values - mean) * here
        return cls(mean, ((away**2).sum() / count).sqrt().clamp(min=TINY))

    def __call__(self, values: Tensor, here: Tensor) -> Tensor:
        """In standard deviations from the mean, (n,); 0 where there is none."""
        return (values - self.mean) * here / self.deviation


@dataclass(frozen=True)
class JointSpace:
    """The space of an image-text model, measured on some samples: the same scales for others. O(n d_j C).

    Attributes:
        prompts: of the classes, (C, d_j), unit rows.
        classes: mean and scale of the cosines of pictures and prompts, (C,) and ().
        best: of the best cosine of a picture.
        fits: of each field's cosine to its own picture.
    """

    prompts: Tensor
    classes: Spread
    best: Spread
    fits: tuple[Spread, ...]

    @classmethod
    def measured(cls, vectors: JointVectors) -> JointSpace:
        """On some samples."""
        pictures, texts = take(vectors.pictures), [take(field) for field in vectors.texts]
        cosines = pictures @ vectors.prompts.T
        mean = cosines.mean(0)
        cosines = cosines - mean
        scale = (cosines**2).mean().sqrt().clamp(min=TINY)
        best = Spread.of(cosines.max(1)[0] / scale, torch.ones(len(pictures), dtype=torch.bool))
        fits = tuple(Spread.of((pictures * t).sum(1), t.any(1)) for t in texts)
        return cls(vectors.prompts, Spread(mean, scale), best, fits)

    def __call__(self, vectors: JointVectors) -> Joint:
        """Evidence of samples.

        >>> vectors = JointVectors(torch.eye(2), torch.eye(2), [torch.tensor([[1.0, 0.0], [0.0, 0.0]])])
        >>> joint = JointSpace.measured(vectors)(vectors)
        >>> joint.cosines.tolist(), tuple(joint.fits.shape)
        ([[1.0, -1.0], [-1.0, 1.0]], (2, 1))
        """
        pictures, texts = take(vectors.pictures), [take(field) for field in vectors.texts]
        cosines = (pictures @ self.prompts.T - self.classes.mean) / self.classes.deviation
        everybody = torch.ones(len(pictures), dtype=torch.bool)
        columns = [torch.zeros(len(pictures), 0)]
        for spread, t in zip(self.fits, texts, strict=True):
            columns.append(spread((pictures * t).sum(1), t.any(1)).clamp(-FAR, FAR)[:, None])
        return Joint(cosines, self.best(cosines.max(1)[0], everybody), torch.cat(columns, 1))


def text_weights(fits: Tensor, gate: Tensor) -> Tensor:
    """How much each text counts, between 0 and 2, (n, f) x (f,) -> (n, f); 1 for all where the gate is 0.

    >>> text_weights(torch.tensor([[-3.0], [0.0], [3.0]]), torch.tensor([2.0]))[:, 0].round(decimals=2).tolist()
    [0.0, 1.0, 2.0]
    """
    return 2 * (gate * fits).sigmoid()
