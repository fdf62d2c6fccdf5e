"""Linear classifiers on soft targets: fitted to the end, judged out of fold, calibrated. Pure.

Cost of a fit: O(n d K) per step of L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor

DECAY = (
    0.2  # of linear classifiers on features of mean squared norm 1, over the number of samples: a fixed prior
)
TINY = 1e-6


class Linear(NamedTuple):
    """A linear classifier: logits = x W + b, and offsets with fitted scales where it has them."""

    W: Tensor  # (d, K)
    b: Tensor  # (K,)
    scales: Tensor  # (m,)

    def __call__(self, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Logits, (n, d) and offsets, (n, K, m) -> (n, K)."""
        logits = x @ self.W + self.b
        return logits if offsets is None else logits + offsets @ self.scales


def _history(numbers: int) -> int:
    """How many of its last steps L-BFGS remembers, for a gigabyte at most: each is two copies of the parameters."""
    return max(5, min(100, 2**27 // max(1, numbers)))


def numbers_of_fit(width: int, states: int, steps: int = 25) -> int:
    """Numbers that a fit of `linear` holds at once beside its samples."""
    return (2 * min(steps, _history(width * states)) + 8) * width * states


def minimise(value: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int) -> None:
    """Minimise a smooth function in place with L-BFGS; parameters need no gradient afterwards."""
    for parameter in parameters:
        parameter.requires_grad_(True)
    history = _history(sum(parameter.numel() for parameter in parameters))
    optimizer = torch.optim.LBFGS(
        list(parameters), max_iter=steps, history_size=history, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = value()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    for parameter in parameters:
        parameter.requires_grad_(False)


class Centring(NamedTuple):
    """Features less a mean, over a scale: measured on some samples, the same for others.

    >>> v = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> Centring.of(v)(v).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """

    mean: Tensor  # (d,)
    scale: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Centring:
        """What gives features, (n, d), a mean of zero and a mean squared norm of 1."""
        mean = features.mean(0)
        return cls(mean, ((features - mean) ** 2).sum(1).mean().sqrt().clamp(min=TINY))

    def __call__(self, features: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return (features - self.mean) / self.scale


class _SoftTargets(torch.autograd.Function):
    """Cross-entropy against soft targets with its gradient in one buffer.

    Arrays of (n, K) are what a fit spends its time on: torch's own steps would write seven of them. The buffer is
    overwritten in the backward pass, so a second one through the same graph is an error.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, q: Tensor) -> Tensor:
        buffer = logits - logits.max(1, keepdim=True)[0]
        fit, weight = torch.linalg.vecdot(q, buffer), q.sum(1)
        total = buffer.exp_().sum(1)
        buffer.mul_((weight / total)[:, None]).sub_(q)  # weight softmax - q
        ctx.save_for_backward(buffer)
        loss: Tensor = weight * total.log() - fit
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (buffer,) = ctx.saved_tensors
        return buffer.mul_(gradient[:, None]), None


def cross_entropy(logits: Tensor, q: Tensor, *, multi_label: bool = False) -> Tensor:
    """Cross-entropy of each sample against soft targets, (n, K) x (n, K) -> (n,).

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).round(decimals=3).tolist()
    [0.6930000185966492]
    """
    if multi_label:
        return F.binary_cross_entropy_with_logits(logits, q, reduction="none").sum(1)
    loss: Tensor = _SoftTargets.apply(logits, q)  # type: ignore[no-untyped-call]
    return loss


def linear(
    x: Tensor,
    q: Tensor,
    *,
    base: Tensor | None = None,
    offsets: Tensor | None = None,
    weight: Tensor | None = None,
    decay: float | None = None,
    steps: int = 25,
    multi_label: bool = False,
) -> Linear:
    """Fit a classifier to soft targets: mean cross-entropy + decay |W|^2.

    Args:
        x: (n, d), centred.
        q: targets, (n, K).
        base: logits that W adds to, (n, K); without them b is fitted.
        offsets: logits whose scales are fitted with W, (n, K, m).
        weight: of the samples, (n,).
        decay: of W and of the scales; DECAY / n if None.
        steps: of L-BFGS.
        multi_label: one yes or no per class instead of one class.
    """
    w = torch.ones(len(x)) if weight is None else weight
    w = w / w.sum().clamp(min=TINY)
    W, b = torch.zeros(x.shape[1], q.shape[1]), torch.zeros(q.shape[1])
    scales = torch.zeros(0 if offsets is None else offsets.shape[2])
    start = b if base is None else base
    ridge_of = DECAY / max(1, len(x)) if decay is None else decay

    def value() -> Tensor:
        logits = torch.addmm(start, x, W)
        ridge = ridge_of * (W**2).sum()
        if offsets is not None:
            logits, ridge = logits + offsets @ scales, ridge + ridge_of * (scales**2).sum()
        return (w * cross_entropy(logits, q, multi_label=multi_label)).sum() + ridge

    minimise(value, [W, *([b] if base is None else []), *([scales] if len(scales) else [])], steps)
    return Linear(W, b, scales)


def assign_folds(n: int, folds: int, seed: int) -> Tensor:
    """A fold for each sample, (n,), of nearly equal sizes."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    fold = torch.empty(n, dtype=torch.int64)
    fold[order] = torch.arange(n) % folds
    return fold


class FoldScores(NamedTuple):
    """What classifiers say of the samples that they were not fitted to."""

    logits: Tensor  # (n, K)
    model: Linear  # mean over the folds, for samples that are in none


def judge_folds(
    x: Tensor, q: Tensor, fold: Tensor, *, offsets: Tensor | None = None, **options: Any
) -> FoldScores:
    """Logits of each sample by a classifier that was fitted to the other folds, and the mean of these classifiers.

    Args:
        x: (n, d).
        q: targets, (n, K).
        fold: (n,).
        offsets: logits whose scales are fitted, (n, K, m).
        options: of `linear`; `weight` and `base` have one row per sample.
    """
    out, models = torch.zeros_like(q), list[Linear]()
    empty = Linear(torch.zeros(x.shape[1], q.shape[1]), torch.zeros(q.shape[1]), torch.zeros(0))
    options = {**options, "offsets": offsets}
    for f in range(int(fold.max()) + 1 if len(fold) else 0):
        rest = fold != f
        part: dict[str, Any] = {k: v[rest] if isinstance(v, Tensor) else v for k, v in options.items()}
        model = linear(x[rest], q[rest], **part)
        out[~rest] = model(x[~rest], None if offsets is None else offsets[~rest])
        models.append(model)
    return FoldScores(
        out, Linear(*(torch.stack(part).mean(0) for part in zip(*(models or [empty]), strict=True)))
    )


# --- calibration ----------------------------------------------------------------------------------

BOUNDS = (0.05, 20.0)  # of the scale


class Calibration(NamedTuple):
    """Logits become scale * logits + shift. The order of classes and of samples stays as it is."""

    scale: float
    shift: float

    def __call__(self, logits: Tensor) -> Tensor:
        """Calibrated logits, in the shape given."""
        return self.scale * logits + self.shift


NO_CALIBRATION = Calibration(1.0, 0.0)


def calibrate(logits: Tensor, q: Tensor, *, multi_label: bool = False, ridge: float = 0.0) -> Calibration:
    """The scale (multi-label: and shift) under which logits predict the posterior best.

    Args:
        logits: of samples that the classifier has not seen, (n, C).
        q: their posterior, (n, C); single-label: none of these is left out, rows are scaled to sum 1.
        multi_label: one yes or no per class instead of one class.
        ridge: of the distance from no calibration, where there are few samples.

    >>> calibrate(torch.tensor([[8.0, 0.0], [8.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])).scale < 0.5
    True
    """
    if not len(logits):
        return NO_CALIBRATION
    if not multi_label:
        q = q / q.sum(1, keepdim=True).clamp(min=1e-6)
    scale, shift = torch.ones(()), torch.zeros(())
    logits, q = logits.float(), q.float()

    def value() -> Tensor:
        loss = cross_entropy(scale * logits + shift, q, multi_label=multi_label).mean()
        return loss + ridge * ((scale - 1) ** 2 + shift**2)

    minimise(value, [scale, shift] if multi_label else [scale], 50)
    calibration = Calibration(float(scale.clamp(*BOUNDS)), float(shift))
    return calibration if torch.isfinite(torch.tensor(calibration)).all() else NO_CALIBRATION
