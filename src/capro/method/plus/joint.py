"""What an image-text model (CLIP, SigLIP) says of each sample in its own space. Pure.

Such a model has a picture and a text tower that end in one space. Two things follow from it beside the features: which
class prompt a picture is near (zero-shot), an offset of the picture's classifier; and whether a text fits its own
picture, which says how much that text counts. Both have weights that are fitted in EM with all others, so a text tower
that knows nothing gets none.

Cost: O(n d_j C); beyond the inputs O(n C) memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capro.method.plus.fitting import TINY

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
    cosines = pictures @ prompts.T
    cosines = cosines - cosines.mean(0)
    cosines = cosines / (cosines**2).mean().sqrt().clamp(min=TINY)
    fits = [_standard((pictures * t).sum(1), t.any(1)).clamp(-FAR, FAR) for t in texts]
    columns = torch.stack(fits, 1) if fits else torch.zeros(len(pictures), 0)
    return Joint(cosines, _standard(cosines.max(1)[0], torch.ones(len(pictures), dtype=torch.bool)), columns)


def _standard(values: Tensor, here: Tensor) -> Tensor:
    """Values in standard deviations from their mean, (n,), over the samples that have one; 0 elsewhere."""
    count = here.sum().clamp(min=1)
    away = (values - (values * here).sum() / count) * here
    return away / ((away**2).sum() / count).sqrt().clamp(min=TINY)


def counted(fits: Tensor, gate: Tensor) -> Tensor:
    """How much each text counts, between 0 and 2, (n, f) x (f,) -> (n, f); 1 for all where the gate is 0.

    >>> counted(torch.tensor([[-3.0], [0.0], [3.0]]), torch.tensor([2.0]))[:, 0].round(decimals=2).tolist()
    [0.0, 1.0, 2.0]
    """
    return 2 * (gate * fits).sigmoid()
