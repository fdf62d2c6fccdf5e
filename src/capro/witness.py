"""What a sample's own text says of every class: a third witness in the label rule (ours, one label).

    t = softmax(s_hat . s^c / tau_t)

The paper reads texts to choose anchors and then no more. Here they are heard on every other sample as
well (`capro.labels.with_text`). Their temperature is fitted, not set: it is the one under which the web
labels are most likely. Where texts and labels hardly agree it is high, t is nearly flat and decides
nothing.

Cost: O(b d_t C) a batch; nothing of size N x C is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from capro.graph.neighbors import unit_rows

FITTED_ON = 20_000  # samples, evenly spread over the set: more would not move the temperature
TEMPERATURES = (0.01, 10.0)  # at 10 every class is as likely as any other


@dataclass(frozen=True)
class TextWitness:
    """Texts, class texts and the temperature between them.

    Attributes:
        texts: s_hat, (n, d_t), enhanced texts, a mapped file if large; zero rows are missing texts.
        prototypes: s^c, (C, d_t), unit norm.
        tau: temperature of the texts.
    """

    texts: NDArray[Any]
    prototypes: NDArray[np.float32]
    tau: float

    @classmethod
    def fitted(
        cls, texts: NDArray[Any], prototypes: ArrayLike, labels: NDArray[np.int64]
    ) -> TextWitness:
        """With the temperature under which the web labels, (n,), -1 for none, are most likely."""
        s_c = unit_rows(prototypes, "prototypes")
        rows = np.flatnonzero(labels >= 0)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), FITTED_ON)).astype(np.int64)]
        cosines = _cosines(texts, s_c, rows)
        spoken = cosines.any(axis=1)
        found = cls(texts, s_c, TEMPERATURES[1])
        if not spoken.any():
            return found
        known, y = torch.from_numpy(cosines[spoken]), torch.from_numpy(labels[rows][spoken])

        def unlikely(log_tau: float) -> float:  # convex in 1 / tau, so it has one minimum
            return float(torch.nn.functional.cross_entropy(known / float(np.exp(log_tau)), y))

        low, high = np.log(TEMPERATURES)
        best = minimize_scalar(unlikely, bounds=(low, high), method="bounded")
        return cls(texts, s_c, float(np.exp(best.x)))

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """What the texts of some samples say, t, (b, C); a row of zeros where there is no text."""
        cosines = torch.from_numpy(_cosines(self.texts, self.prototypes, rows))
        spoken = cosines.any(dim=1, keepdim=True)
        return torch.where(spoken, (cosines / self.tau).softmax(dim=1), 0.0)


def _cosines(
    texts: NDArray[Any], s_c: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    return unit_rows(texts[rows], "texts") @ s_c.T  # (b, d_t) x (d_t, C) -> (b, C)
