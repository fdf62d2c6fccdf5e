"""The probability of every class by a sample's own text: evidence in the label rule (ours, one label).

    t = softmax(s_hat . s^c / tau_t + beta_c)

The paper reads texts to choose anchors and then no more. Here they count for every other sample as well
(`capro.method.label_rule.with_text`). tau_t and beta are fitted, not set: those under which the web labels
are most likely. Where texts and labels hardly agree tau_t is high, t is nearly flat and decides nothing;
beta corrects a class whose text lies too near to all samples, or too far from its own.

Cost: O(b d_t C) a batch; nothing of size N x C is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from capro.graph.neighbors import unit_rows

FITTED_ON = 20_000  # samples, evenly spread over the set: more would not move the fit
SHARPEST = 100.0  # 1 / tau_t at most
RIDGE = 1e-3  # keeps the beta of a class without samples finite


@dataclass(frozen=True)
class TextEvidence:
    """Texts, class texts, and how to read their likeness.

    Attributes:
        texts: s_hat, (n, d_t), enhanced texts, a mapped file if large; zero rows are missing texts.
        prototypes: s^c, (C, d_t), unit norm.
        tau: temperature of the texts; infinite where they carry no evidence.
        bias: beta, (C,).
    """

    texts: NDArray[Any]
    prototypes: NDArray[np.float32]
    tau: float
    bias: Tensor

    @classmethod
    def fitted(cls, texts: NDArray[Any], prototypes: ArrayLike, labels: NDArray[np.int64]) -> TextEvidence:
        """With the tau_t and beta under which the web labels, (n,), -1 for none, are most likely."""
        s_c = unit_rows(prototypes, "prototypes")
        rows = np.flatnonzero(labels >= 0)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), FITTED_ON)).astype(np.int64)]
        cosines = torch.from_numpy(_cosines(texts, s_c, rows))
        has_text = cosines.any(dim=1)
        if not has_text.any():
            return cls(texts, s_c, math.inf, torch.zeros(len(s_c)))
        sharpness, bias = _fit(cosines[has_text], torch.from_numpy(labels[rows])[has_text])
        return cls(texts, s_c, 1 / sharpness if sharpness else math.inf, bias)

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """The probabilities by the texts of some samples, t, (b, C); a row of zeros where there is no text."""
        cosines = torch.from_numpy(_cosines(self.texts, self.prototypes, rows))
        has_text = cosines.any(dim=1, keepdim=True)
        return torch.where(has_text, (cosines / self.tau + self.bias).softmax(dim=1), 0.0)


def _fit(cosines: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """1 / tau_t and beta of the largest likelihood: multinomial regression, a convex problem.

    Args:
        cosines: (m, C).
        labels: (m,).
    """
    known = cosines.double()
    sharpness = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(known.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [sharpness, bias], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def loss_of() -> Tensor:
        optimizer.zero_grad()
        logits = sharpness * known + bias
        loss = torch.nn.functional.cross_entropy(logits, labels) + RIDGE * (bias**2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(loss_of)  # type: ignore[no-untyped-call]
    found = float(sharpness.detach().clamp(0, SHARPEST))  # below 0: texts contradict the labels
    return found, bias.detach().float() if found else torch.zeros_like(bias).float()


def _cosines(texts: NDArray[Any], s_c: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return unit_rows(texts[rows], "texts") @ s_c.T  # (b, d_t) x (d_t, C) -> (b, C)
