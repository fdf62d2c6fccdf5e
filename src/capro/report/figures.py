"""What the figures show, as arrays and plain lists. Pure: no files, no run, no page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.evaluate import metrics

KINDS = ("anchor", "keep", "away", "arrived", "drop")
ANCHOR, KEEP, AWAY, ARRIVED, DROP = range(len(KINDS))
BINS = 15
PERPLEXITY = 30.0
Ints = NDArray[np.int64]
Scores = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Pairs:
    """Every (sample, class) that carried or carries a label, and what became of it.

    ``away`` is a label that was taken from a sample which stays in the set, ``arrived`` one that it
    got, ``drop`` a label that left with its sample.
    """

    row: Ints
    label: Ints
    kind: Ints  # place in KINDS

    def counts(self, classes: int) -> Ints:
        """How many of each kind every class has, (C, 5)."""
        flat = self.label * len(KINDS) + self.kind
        return np.bincount(flat, minlength=classes * len(KINDS)).reshape(classes, len(KINDS))


def pairs(given: Ints, after: Ints, anchored: NDArray[np.bool_]) -> Pairs:
    """Compare given and cleaned labels.

    Args:
        given: (n,) classes with -1 for none, or (n, C) membership.
        after: same shape; -1, or a row of -1, is dropped.
        anchored: same shape; anchors that the rule protected.

    >>> found = pairs(np.array([0, 0, 1, 1]), np.array([0, 1, -1, 1]), np.array([True] + 3 * [False]))
    >>> [(r, c, KINDS[k]) for r, c, k in zip(found.row.tolist(), found.label.tolist(), found.kind)]
    [(0, 0, 'anchor'), (1, 0, 'away'), (2, 1, 'drop'), (3, 1, 'keep'), (1, 1, 'arrived')]
    """
    if given.ndim == 2:
        out: NDArray[np.bool_] = np.any(after < 0, axis=1, keepdims=True)
        had, has = given > 0, (after > 0) & ~out
        row, label = np.nonzero(had)
        kind = np.where(has[row, label], np.where(anchored[row, label], ANCHOR, KEEP), AWAY)
        kind = np.where(out[row, 0], DROP, kind)
        new_row, new_label = np.nonzero(has & ~had)
    else:
        row = np.flatnonzero(given >= 0)
        label = given[row]
        kind = np.where(after[row] == label, np.where(anchored[row], ANCHOR, KEEP), AWAY)
        kind = np.where(after[row] < 0, DROP, kind)
        new_row = np.flatnonzero((after >= 0) & (after != given))
        new_label = after[new_row]
    return Pairs(
        np.concatenate([row, new_row]).astype(np.int64),
        np.concatenate([label, new_label]).astype(np.int64),
        np.concatenate([kind, np.full(len(new_row), ARRIVED)]).astype(np.int64),
    )


def flow(given: Ints, after: Ints, classes: int) -> Ints:
    """Labels from (row) and to (column) each class, (C + 1, C + 1); the last is *no class*.

    With several labels a label stays, leaves to no class, or comes from no class.

    >>> flow(np.array([0, 0, 1]), np.array([0, 1, -1]), 2).tolist()
    [[1, 1, 0], [0, 0, 1], [0, 0, 0]]
    """
    size = classes + 1
    if given.ndim == 2:
        had, has = given > 0, after > 0
        matrix = np.zeros((size, size), dtype=np.int64)
        np.fill_diagonal(matrix[:classes, :classes], (had & has).sum(axis=0))
        matrix[:classes, classes] = (had & ~has).sum(axis=0)
        matrix[classes, :classes] = (~had & has).sum(axis=0)
        return matrix
    origin = np.where(given < 0, classes, given)
    target = np.where(after < 0, classes, after)
    return np.bincount(origin * size + target, minlength=size * size).reshape(size, size)


def given_by_corrected(given: Ints, after: Ints, classes: int) -> Ints:
    """Samples with the row's web label that carry the column's now, (C, C + 1); last: dropped.

    With several labels, off the diagonal only labels count that the sample did not have.
    """
    if given.ndim == 1:
        return flow(given, after, classes)[:classes]
    had, has = (given > 0).astype(np.int64), after > 0
    counted = has & (given == 0)
    matrix = np.zeros((classes, classes + 1), dtype=np.int64)
    matrix[:, :classes] = had.T @ counted.astype(np.int64)  # (C, n) x (n, C) -> (C, C)
    np.fill_diagonal(matrix[:, :classes], (had * has).sum(axis=0))
    matrix[:, classes] = (had * ~has).sum(axis=0)
    return matrix


def bundle(matrix: Ints, limit: int) -> tuple[Ints, list[int]]:
    """Keep the classes with most change, pour the others into one, ahead of *no class*.

    Args:
        matrix: (C + 1, C + 1), of `flow`.
        limit: classes to keep.

    Returns:
        The matrix, and the kept classes in order; -1 stands for the bundle.

    >>> bundle(np.array([[5, 1, 0], [0, 9, 0], [0, 0, 0]]), 1)[1]
    [0, -1]
    """
    classes = len(matrix) - 1
    if classes <= limit:
        return matrix, list(range(classes))
    inner = matrix.copy()
    np.fill_diagonal(inner, 0)
    moved = (inner.sum(axis=1) + inner.sum(axis=0))[:classes]
    kept = np.sort(np.argsort(-moved, kind="stable")[:limit])
    place = np.full(classes + 1, limit)
    place[kept] = np.arange(limit)
    place[classes] = limit + 1
    small = np.zeros((limit + 2, limit + 2), dtype=np.int64)
    np.add.at(small, (place[:, None], place[None, :]), matrix)
    return small, [*kept.tolist(), -1]


def most_off_diagonal(matrix: Ints, limit: int) -> list[int]:
    """The classes of a (C, C or more) matrix with most off the diagonal, in order, at most limit."""
    classes = len(matrix)
    if classes <= limit:
        return list(range(classes))
    off = matrix.copy()
    np.fill_diagonal(off, 0)
    moved = off.sum(axis=1) + off.sum(axis=0)[:classes]
    return sorted(np.argsort(-moved, kind="stable")[:limit].tolist())


def confusion(scores: Scores, truth: Ints) -> Ints:
    """Test samples of the row's class whose best class is the column's, (C, C)."""
    classes = scores.shape[1]
    known = truth >= 0
    flat = truth[known] * classes + scores[known].argmax(axis=1)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def reliability(scores: Scores, truth: Ints, bins: int = BINS) -> dict[str, Any]:
    """Confidence against accuracy in equal bins, and ECE, the mean gap weighted by samples.

    One label: the highest probability, and whether it is right. Several: every probability, and
    whether the label is there.

    >>> found = reliability(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]), bins=5)
    >>> round(found["ece"], 2), found["count"]
    (0.4, [0, 0, 0, 0, 2])
    """
    if truth.ndim == 2:
        confidence, right = scores.reshape(-1), truth.reshape(-1) > 0
    else:
        known = truth >= 0
        confidence = scores[known].max(axis=1)
        right = scores[known].argmax(axis=1) == truth[known]
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    sums = np.bincount(place, weights=confidence, minlength=bins)
    hits = np.bincount(place, weights=right, minlength=bins)
    full = count > 0
    gap = np.abs(sums - hits).sum() / max(1, count.sum())
    return {
        "confidence": [float(s / c) if c else None for s, c in zip(sums, count, strict=True)],
        "accuracy": [float(h / c) if c else None for h, c in zip(hits, count, strict=True)],
        "count": count.tolist(),
        "ece": float(gap),
        "bins": int(full.sum()),
    }


def open_set(scores: Scores, truth: Ints) -> dict[str, list[float | None]]:
    """Answer only at a highest probability of at least t, for t = 0, 0.01 ... 1.

    Args:
        scores: probabilities, (n, C).
        truth: true classes, (n,); -1 is outside the known classes.

    Returns:
        By threshold: share of samples that are answered, share of the answers that are right, share
        of wrong answers that are held back, C-F1 over the known classes (and the open one, if
        there is a sample of it), share of open samples that are held back.
    """
    classes = scores.shape[1]
    best, answer = scores.max(axis=1), scores.argmax(axis=1)
    right, unknown = answer == truth, truth < 0
    target = np.where(unknown, classes, truth)
    axis = np.flatnonzero(np.bincount(target, minlength=classes + 1))
    found: dict[str, list[float | None]] = {
        name: [] for name in ("answered", "right", "caught", "f1", "open")
    }
    for step in range(101):
        kept = best >= step / 100
        found["answered"].append(float(kept.mean()))
        found["right"].append(float(right[kept].mean()) if kept.any() else None)
        found["caught"].append(float((~kept[~right]).mean()) if (~right).any() else None)
        found["open"].append(float((~kept[unknown]).mean()) if unknown.any() else None)
        found["f1"].append(_class_f1(target, np.where(kept, answer, classes), axis, classes + 1))
    return found


def _class_f1(target: Ints, said: Ints, axis: Ints, size: int) -> float:
    """C-F1: harmonic mean of the class means of precision and recall (method.md, Evaluation)."""
    there, made = np.bincount(target, minlength=size), np.bincount(said, minlength=size)
    hit = np.bincount(target[target == said], minlength=size)
    precision = float((hit[axis] / np.maximum(1, made[axis])).mean())
    recall = float((hit[axis] / np.maximum(1, there[axis])).mean())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def label_threshold(scores: Scores, truth: Ints) -> dict[str, list[float | None]]:
    """Several labels: every class with probability at least t is said, for t = 0, 0.01 ... 1.

    Returns:
        By threshold: precision, recall and F1 of all decisions, and labels said per image.
    """
    found: dict[str, list[float | None]] = {
        name: [] for name in ("precision", "recall", "f1", "labels")
    }
    there = truth > 0
    for step in range(101):
        said = scores >= step / 100
        hit = float((said & there).sum())
        precision = hit / said.sum() if said.any() else None
        recall = hit / there.sum() if there.any() else None
        both = (precision or 0) + (recall or 0)
        found["precision"].append(None if precision is None else float(precision))
        found["recall"].append(None if recall is None else float(recall))
        found["f1"].append(2 * (precision or 0) * (recall or 0) / both if both else 0.0)
        found["labels"].append(float(said.sum() / max(1, len(said))))
    return found


def class_changes(vanilla: Scores, capro: Scores, truth: Ints) -> list[dict[str, Any]]:
    """Each class with test samples under both models, worst change first.

    The figure is top-1 accuracy, or average precision with several labels.
    """
    if truth.ndim == 2:
        before, then = (metrics.average_precision(s, truth) for s in (vanilla, capro))
        counts = (truth > 0).sum(axis=0)
    else:
        known = truth >= 0
        before, then = (metrics.class_accuracy(s[known], truth[known]) for s in (vanilla, capro))
        counts = np.bincount(truth[known], minlength=vanilla.shape[1])
    found = [
        {
            "label": c,
            "samples": int(counts[c]),
            "before": float(before[c]),
            "after": float(then[c]),
            "change": float(then[c] - before[c]),
        }
        for c in np.flatnonzero(counts > 0).tolist()
    ]
    return sorted(found, key=lambda row: (row["change"], row["label"]))


def paired_interval(vanilla: Scores, capro: Scores, truth: Ints) -> tuple[float, float]:
    """95 % interval of the difference in top-1 accuracy, from the samples on which the two differ."""
    one = (vanilla.argmax(axis=1) == truth).astype(np.float64)
    two = (capro.argmax(axis=1) == truth).astype(np.float64)
    each = two - one
    error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("nan")
    return float(each.mean() - 1.96 * error), float(each.mean() + 1.96 * error)


def embedding_map(features: NDArray[np.floating[Any]], seed: int) -> NDArray[np.float32]:
    """Two dimensions by t-SNE, scaled to 0 ... 1, (n, 2); O(n log n), ten seconds for 3,000."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    x = np.asarray(features, dtype=np.float32)
    n = len(x)
    if n < 4 or not np.ptp(x, axis=0).any():  # too few, or all the same: a circle
        angle = np.linspace(0, 2 * np.pi, max(n, 1), endpoint=False)[:n]
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) / 2 + 0.5
        return circle.astype(np.float32)
    width = min(50, n - 1, x.shape[1])
    x = PCA(width, random_state=seed % 2**32, svd_solver="randomized").fit_transform(x)
    found = TSNE(
        2, init="pca" if width >= 2 else "random", random_state=seed % 2**32,
        perplexity=min(PERPLEXITY, (n - 1) / 3),
    ).fit_transform(x)  # fmt: skip
    low, high = found.min(axis=0), found.max(axis=0)
    scaled: NDArray[np.float32] = ((found - low) / np.maximum(high - low, 1e-9)).astype(np.float32)
    return scaled
