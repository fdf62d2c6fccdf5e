"""What an image-text model (CLIP, SigLIP) says of each sample in its own space. Pure.

Such a model has a picture and a text tower that end in one space. Two things follow from it beside the features: which
class prompt a picture is near (zero-shot), an offset of the picture's classifier; and whether a text fits its own
picture, which says how much that text counts. Both have weights that are fitted in EM with all others, so a text tower
that knows nothing gets none.

Cost: O(n d_j C); beyond the inputs O(n C) memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from capro.core.plus.fitting import TINY

FAR = 3.0  # standard deviations beyond which a text fits its picture no worse, or better


class Joint(NamedTuple):
    """Evidence of an image-text model, each part in its standard deviations."""

    cosines: Tensor  # (n, C): picture to class prompt, less the class's mean
    best: Tensor  # (n,): the best of them, for none of these
    fits: Tensor  # (n, f): each field's text to its own picture; 0 where there is no text

    def offsets(self) -> Tensor:
        """Logits of one label whose scales are fitted, (n, C + 1, 2): the classes, and none of these."""
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
class Towers:
    """An image-text model's space, measured on some samples: the same scales for others.

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
    def measured(cls, pictures: Tensor, prompts: Tensor, texts: Sequence[Tensor]) -> Towers:
        """Args as in `joint_evidence`."""
        cosines = pictures @ prompts.T
        mean = cosines.mean(0)
        cosines = cosines - mean
        scale = (cosines**2).mean().sqrt().clamp(min=TINY)
        best = Spread.of(cosines.max(1)[0] / scale, torch.ones(len(pictures), dtype=torch.bool))
        fits = tuple(Spread.of((pictures * t).sum(1), t.any(1)) for t in texts)
        return cls(prompts, Spread(mean, scale), best, fits)

    def __call__(self, pictures: Tensor, texts: Sequence[Tensor]) -> Joint:
        """Evidence of samples: pictures, (n, d_j), and each field's texts, (n, d_j)."""
        cosines = (pictures @ self.prompts.T - self.classes.mean) / self.classes.deviation
        everybody = torch.ones(len(pictures), dtype=torch.bool)
        fits = [
            spread((pictures * t).sum(1), t.any(1)).clamp(-FAR, FAR)
            for spread, t in zip(self.fits, texts, strict=True)
        ]
        columns = torch.stack(fits, 1) if fits else torch.zeros(len(pictures), 0)
        return Joint(cosines, self.best(cosines.max(1)[0], everybody), columns)


def joint_evidence(pictures: Tensor, prompts: Tensor, texts: Sequence[Tensor]) -> Joint:
    """Evidence from vectors of one space.

    Args:
        pictures: (n, d_j), unit rows.
        prompts: of the classes, (C, d_j), unit rows.
        texts: each field's text vectors, (n, d_j), unit rows, zero where there is no text.

    >>> found = joint_evidence(torch.eye(2), torch.eye(2), [torch.tensor([[1.0, 0.0], [0.0, 0.0]])])
    >>> found.cosines.tolist(), tuple(found.fits.shape)
    ([[1.0, -1.0], [-1.0, 1.0]], (2, 1))
    """
    return Towers.measured(pictures, prompts, texts)(pictures, texts)


def counted(fits: Tensor, gate: Tensor) -> Tensor:
    """How much each text counts, between 0 and 2, (n, f) x (f,) -> (n, f); 1 for all where the gate is 0.

    >>> counted(torch.tensor([[-3.0], [0.0], [3.0]]), torch.tensor([2.0]))[:, 0].round(decimals=2).tolist()
    [0.0, 1.0, 2.0]
    """
    return 2 * (gate * fits).sigmoid()
