"""Metrics over exactly the test samples (method.md, Evaluation). Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def top_k_accuracy(scores: NDArray[np.floating], y: NDArray[np.int64], k: int = 1) -> float:
    """Share of samples whose true class is among the k best scores; ties go to the lower class.

    Args:
        scores: (n, C).
        y: true classes, (n,).
        k: clipped to C.

    >>> float(top_k_accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])))
    0.5
    """
    best = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, scores.shape[1])]
    return float((best == y[:, None]).any(axis=1).mean()) if len(y) else float("nan")


def class_accuracy(scores: NDArray[np.floating], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Top-1 accuracy of each class, (C,); nan for a class without test samples."""
    right = scores.argmax(axis=1) == y
    counts = np.bincount(y, minlength=scores.shape[1])
    hits = np.bincount(y[right], minlength=scores.shape[1])
    share: NDArray[np.float64] = np.full(len(counts), np.nan)
    np.divide(hits, counts, out=share, where=counts > 0)
    return share


def average_precision(scores: NDArray[np.floating], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average precision of each class, (n, C) x (n, C) -> (C,); nan for a class without positives.

    Samples with equal scores count as one step of the ranking.
    """
    found = np.full(scores.shape[1], np.nan)
    for c in range(scores.shape[1]):
        if not y[:, c].any():
            continue
        order = np.argsort(-scores[:, c], kind="stable")
        hits = np.cumsum(y[order, c])
        ends = np.flatnonzero(np.diff(scores[order, c], append=-np.inf))  # last of equal scores
        precision = hits[ends] / (ends + 1)
        gained = np.diff(hits[ends], prepend=0)
        found[c] = float((precision * gained).sum() / hits[-1])
    return found


def multi_label(
    scores: NDArray[np.floating], y: NDArray[np.int64], *, top: int = 3
) -> dict[str, float]:
    """C-P, C-R, C-F1, O-P, O-R, O-F1 of the ``top`` best classes of each image, and mAP.

    C-P and C-R are means over classes (a class never predicted has precision 0), C-F1 is their
    harmonic mean; O- pools all decisions; mAP is the mean of AP over classes with positives.
    """
    best = np.argsort(-scores, axis=1, kind="stable")[:, : min(top, scores.shape[1])]
    predicted = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(predicted, best, True, axis=1)
    hit = (predicted & (y > 0)).sum(axis=0)
    made, there = predicted.sum(axis=0), (y > 0).sum(axis=0)
    precision = np.divide(hit, made, out=np.zeros(len(made)), where=made > 0)
    recall = np.divide(hit, there, out=np.zeros(len(there)), where=there > 0)
    c_p, c_r = float(precision.mean()), float(recall.mean())
    o_p, o_r = float(hit.sum() / max(1, made.sum())), float(hit.sum() / max(1, there.sum()))
    return {
        "C-P": c_p,
        "C-R": c_r,
        "C-F1": _harmonic(c_p, c_r),
        "O-P": o_p,
        "O-R": o_r,
        "O-F1": _harmonic(o_p, o_r),
        "mAP": float(np.nanmean(average_precision(scores, y))),
    }


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b else 0.0
