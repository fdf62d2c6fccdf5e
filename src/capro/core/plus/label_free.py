"""A guess without any label: pictures in the text space, learnt on the crawl's own pairs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor


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
    out, here, found = torch.zeros_like(t), t.any(1), list[Tensor]()
    for f in range(int(fold.max()) + 1 if len(fold) else 0):
        rest = (fold != f) & here
        if not rest.any():
            continue
        gram = x[rest].T @ x[rest] + ridge * float(rest.sum()) * torch.eye(x.shape[1])
        mean = t[rest].mean(0)
        B = torch.linalg.solve(gram, x[rest].T @ (t[rest] - mean))  # (d, d_t)
        out[fold == f] = x[fold == f] @ B
        found.append(B)
    return Regressed(out, torch.stack(found).mean(0) if found else torch.zeros(x.shape[1], t.shape[1]))


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
