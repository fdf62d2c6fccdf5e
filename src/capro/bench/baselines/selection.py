"""Looking at labels before training: cross-validated beliefs, confident learning, and votes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from capro.errors import ConfigError
from capro.pipeline.checksums import seed_for

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


def folds(labels: Labels, count: int, *, seed: int) -> NDArray[np.int64]:
    """Fold of each sample, (n,): every class is dealt out evenly; several labels: every sample.

    >>> sorted(np.bincount(folds(np.array([0, 0, 1, 1]), 2, seed=0)).tolist())
    [2, 2]
    """
    rng = np.random.default_rng(seed_for(seed, "folds"))
    order = rng.permutation(len(labels))
    if labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % count
    return found


def cross_validated(
    labels: Labels, learn: Callable[[NDArray[np.int64], NDArray[np.int64]], Floats], *, count: int, seed: int
) -> Floats:
    """Out-of-fold probabilities, (n, C): every sample is judged by a model that has not seen it.

    Args:
        labels: Web labels, (n,) or (n, C).
        learn: From training rows and rows to judge to their probabilities.
        count: Number of folds.
        seed: Of the folds.
    """
    which = folds(labels, count, seed=seed)
    whole: Floats | None = None
    for fold in range(count):
        held = np.flatnonzero(which == fold)
        if not len(held):
            continue
        part = learn(np.flatnonzero(which != fold), held)
        if whole is None:
            whole = np.zeros((len(labels), part.shape[1]), dtype=np.float32)
        whole[held] = part
    return whole if whole is not None else np.zeros((0, 0), dtype=np.float32)


def estimate_noise(probabilities: Floats, labels: Labels) -> float:
    """Share of wrong labels by confident learning's counting (Northcutt et al. 2021), one label.

    A sample counts as wrong when another class reaches that class's mean self-confidence and is the
    most probable one of those that do; a sample of which nobody is sure counts as right. Too high
    where the classes are hard to tell apart.

    Args:
        probabilities: out of fold, (n, C).
        labels: web labels, (n,).
    """
    n_classes = probabilities.shape[1]
    bars = np.full(n_classes, np.inf)
    for c in range(n_classes):
        own = probabilities[labels == c, c]
        if len(own):
            bars[c] = own.mean()
    confident = np.where(probabilities >= bars, probabilities, -1.0)
    sure = confident.max(axis=1) >= 0
    wrong = sure & (confident.argmax(axis=1) != labels)
    return float(wrong.mean()) if len(labels) else 0.0


def label_issues(probabilities: Floats, labels: Labels) -> NDArray[np.bool_]:
    """Samples that cleanlab's ``find_label_issues`` calls mislabelled, (n,)."""
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.multilabel_classification import filter as multi_label
    except ImportError:
        raise ConfigError(
            "the baseline cleanlab needs the package cleanlab", hint="pip install 'capro[cleanlab]'"
        ) from None
    beliefs = probabilities.astype(np.float64)
    if labels.ndim == 1:
        beliefs /= beliefs.sum(axis=1, keepdims=True)
        issues = find_label_issues(labels, beliefs, n_jobs=1)
    else:
        given = [np.flatnonzero(row).tolist() for row in labels > 0]
        issues = multi_label.find_label_issues(given, beliefs, n_jobs=1)
    found: NDArray[np.bool_] = np.asarray(issues, dtype=bool)
    return found


def vote(train: Floats, labels: Labels, test: Floats, n_classes: int, *, k: int) -> Floats:
    """Share of each class among the k nearest training samples by cosine, weighted by it.

    Args:
        train: features, (n, d).
        labels: web labels, (n,) or (n, C).
        test: features, (m, d).
        n_classes: C.
        k: neighbours; fewer where there are fewer.

    Returns:
        (m, C); rows sum to 1 for one label.
    """
    import faiss

    from capro.graph.neighbors import unit_rows

    index = faiss.IndexFlatIP(train.shape[1])
    index.add(np.ascontiguousarray(unit_rows(train), dtype=np.float32))
    queries = np.ascontiguousarray(unit_rows(test), dtype=np.float32)
    near, rows = index.search(queries, min(k, len(train)))  # (m, k)
    weight = np.maximum(near, 0) + 1e-6
    member = np.eye(n_classes, dtype=np.float32)[labels] if labels.ndim == 1 else labels > 0
    scores = np.einsum("mk,mkc->mc", weight, member[rows].astype(np.float32))
    return np.asarray(scores / weight.sum(axis=1, keepdims=True), dtype=np.float32)
