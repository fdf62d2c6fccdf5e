"""Making a classifier as sure as it is right, on samples that it has not seen. Pure."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from capro.core.plus.fitting import cross_entropy, minimise

BOUNDS = (0.05, 20.0)  # of the scale


class Calibration(NamedTuple):
    """Logits become scale * logits + shift. The order of classes and of samples stays as it is."""

    scale: float
    shift: float

    def __call__(self, logits: Tensor) -> Tensor:
        """Calibrated logits, in the shape given."""
        return self.scale * logits + self.shift


NO_CALIBRATION = Calibration(1.0, 0.0)


def calibrate(logits: Tensor, q: Tensor, *, several: bool = False) -> Calibration:
    """The scale (several labels: and shift) under which logits predict the posterior best.

    Args:
        logits: of samples that the classifier has not seen, (n, C).
        q: their posterior, (n, C); one label: none of these is left out, rows are scaled to sum 1.
        several: one yes or no per class instead of one class.

    >>> calibrate(torch.tensor([[8.0, 0.0], [8.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])).scale < 0.5
    True
    """
    if not len(logits):
        return NO_CALIBRATION
    if not several:
        q = q / q.sum(1, keepdim=True).clamp(min=1e-6)
    scale, shift = torch.ones(()), torch.zeros(())
    logits, q = logits.float(), q.float()
    minimise(
        lambda: cross_entropy(scale * logits + shift, q, several=several).mean(),
        [scale, shift] if several else [scale],
        50,
    )
    found = Calibration(float(scale.clamp(*BOUNDS)), float(shift))
    return found if torch.isfinite(torch.tensor(found)).all() else NO_CALIBRATION
