"""A guess without any label: pictures in the text space, learnt on the crawl's own pairs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor


def picture_to_text(x: Tensor, texts: Sequence[Tensor], fold: Tensor, *, ridge: float = 1e-3) -> Tensor:
    """Where each picture lies in the text space, (n, d_t): ridge regression on the crawl's own pairs.

    Judged out of fold; the texts are the mean of a sample's fields. Reads no label. O(n d^2 + d^3).

    Args:
        x: (n, d), centred.
        texts: fields, (n, d_t) each; samples without any text are predicted, not learnt from.
        fold: (n,).
        ridge: penalty per sample.
    """
    if not texts:
        return torch.zeros(len(x), 1)
    t = F.normalize(torch.stack(list(texts)).sum(0), dim=1)
    out, here = torch.zeros_like(t), t.any(1)
    for f in range(int(fold.max()) + 1 if len(fold) else 0):
        rest = (fold != f) & here
        if not rest.any():
            continue
        gram = x[rest].T @ x[rest] + ridge * float(rest.sum()) * torch.eye(x.shape[1])
        mean = t[rest].mean(0)
        B = torch.linalg.solve(gram, x[rest].T @ (t[rest] - mean))  # (d, d_t)
        out[fold == f] = x[fold == f] @ B
    return out


def text_guess(predicted: Tensor, class_texts: Tensor) -> Tensor:
    """Cosine of each predicted text to each class text, both less their means, (n, C).

    Args:
        predicted: (n, d_t), of `picture_to_text`; (n, 1) without any text.
        class_texts: (C, d_t).
    """
    if predicted.shape[1] != class_texts.shape[1]:
        return torch.zeros(len(predicted), len(class_texts))
    classes = F.normalize(class_texts - class_texts.mean(0), dim=1)
    return F.normalize(predicted, dim=1) @ classes.T
