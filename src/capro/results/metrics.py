"""Metrics over exactly the test samples (docs/evaluation.md). Pure.

n samples, C classes. Everything is O(n C log(n C)) at most: rankings are sorted once. Precision, recall and average
precision are scikit-learn's. By hand is what it has not: ties that go to the lower class, confusions of ten thousand
classes in a sparse matrix, bins of confidence with their sizes, and the interval of a share whose hits are no integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from capro.core.kept_scores import numbers_only
from capro.data.labels import Labels, kind_of
from capro.errors import DataError
from capro.results.label_changes import Counts, counts_of

Scores = NDArray[np.floating]
NORMAL_95 = 1.959964  # of a normal distribution 95 % lie within so many standard deviations


# --- single-label ---------------------------------------------------------------------------------


def top_k_accuracy(scores: Scores, y: Labels, k: int = 1) -> float:
    """Share of samples whose true class is among the k best scores; ties go to the lower class.

    Args:
        scores: (n, C).
        y: true classes, (n,).
        k: clipped to C.

    >>> float(top_k_accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])))
    0.5
    """
    return mean((best_classes(scores, k) == y[:, None]).any(axis=1))


def best_classes(scores: Scores, k: int) -> NDArray[np.int64]:
    """The k best classes of each sample, best first, (n, min(k, C)); ties go to the lower class, nan is an error."""
    order: NDArray[np.int64] = np.argsort(-numbers_only(scores), axis=1, kind="stable")[:, :k]
    return order


def best_class(scores: Scores) -> NDArray[np.int64]:
    """The best class of each sample, (n,); ties go to the lower class, nan is an error.

    >>> best_class(np.array([[0.1, 0.9], [0.5, 0.5]])).tolist()
    [1, 0]
    """
    return np.asarray(numbers_only(scores).argmax(axis=1))


def class_accuracy(scores: Scores, y: Labels) -> NDArray[np.float64]:
    """Top-1 accuracy of each class, (C,); nan for a class without test samples."""
    return shares_by_class(y, best_class(scores) == y, scores.shape[1])


def shares_by_class(y: NDArray[np.integer], right: NDArray[np.bool_], n_classes: int) -> NDArray[np.float64]:
    """Share of the samples of each class that are right, (C,); nan for a class without samples."""
    hits, counts = np.bincount(y[right], minlength=n_classes), np.bincount(y, minlength=n_classes)
    return _ratio(hits, counts)


def confusion(scores: Scores, y: Labels) -> Counts:
    """How often true class i (row) was taken for class j (column), (C, C)."""
    return counts_of(y, best_class(scores), (scores.shape[1], scores.shape[1]))


def confusion_multi(scores: Scores, y: Labels) -> Counts:
    """How often class i was missed (row) while class j was wrongly named (column), (C, C)."""
    predicted, positive = top_decisions(scores), y > 0
    missed, false = (
        sparse.csr_array(part.astype(np.int64)) for part in (positive & ~predicted, predicted & ~positive)
    )
    own = np.arange(y.shape[1])
    right = counts_of(own, own, (len(own), len(own)), (predicted & positive).sum(axis=0))
    return sparse.csr_array(missed.T @ false + right)


class Pair(NamedTuple):
    """Two classes that are mixed up: ``true`` samples were taken for ``taken``."""

    true: int
    taken: int
    times: int
    share: float  # of the samples of the true class


def confusion_pairs(matrix: Counts, sizes: NDArray[np.int64] | None = None, top: int = 10) -> list[Pair]:
    """The most frequent confusions, most frequent first; ties by class numbers.

    Args:
        matrix: (C, C), rows are true classes.
        sizes: samples of each class, (C,); the row sums if unset.
        top: how many.

    >>> confusion_pairs(sparse.csr_array([[3, 2], [0, 5]]))
    [Pair(true=0, taken=1, times=2, share=0.4)]
    """
    cells = matrix.tocoo()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    i, j, times = cells.row[wrong], cells.col[wrong], cells.data[wrong]
    sizes = matrix.sum(axis=1) if sizes is None else sizes
    most = np.lexsort((j, i, -times))[:top]
    return [Pair(int(i[c]), int(j[c]), int(times[c]), float(times[c] / sizes[i[c]])) for c in most]


# --- calibration ----------------------------------------------------------------------------------


class Reliability(NamedTuple):
    """Equal-width bins of confidence; empty bins have nan means."""

    edges: NDArray[np.float64]  # (bins + 1,)
    sizes: NDArray[np.int64]  # (bins,) samples
    confidence: NDArray[np.float64]  # (bins,) mean
    accuracy: NDArray[np.float64]  # (bins,) share that is right

    @property
    def ece(self) -> float:
        """Expected calibration error: mean over samples of the bins' |accuracy - confidence|."""
        filled = self.sizes > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.average(gaps, weights=self.sizes[filled])) if filled.any() else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Plain data: one row per bin, None where a bin is empty."""
        columns = self.edges[:-1], self.edges[1:], self.sizes, self.confidence, self.accuracy
        rows = [
            dict(zip(("from", "to", "count", "confidence", "accuracy"), row, strict=True))
            for row in zip(*(column.tolist() for column in columns), strict=True)
        ]
        empty = {"confidence": None, "accuracy": None}
        return {"ece": self.ece, "bins": [row if row["count"] else row | empty for row in rows]}


def reliability(scores: Scores, y: Labels, bins: int = 15) -> Reliability:
    """Confidence against accuracy; a bin holds (lower, upper], the first one 0 as well.

    Single-label: the confidence of the best class. Multi-label: every (sample, class) is a yes or
    no, its confidence that of the answer, max(p, 1 - p).

    Args:
        scores: probabilities, (n, C).
        y: (n,) classes, or (n, C) membership.
        bins: number of bins of equal width.

    >>> reliability(np.array([[0.25, 0.75]]), np.array([1])).ece
    0.25
    """
    if bins < 1:
        raise DataError(f"{bins} bins of confidence", hint="give 1 bin or more")
    if not kind_of(y).multi_label:
        sure, right = scores.max(axis=1), best_class(scores) == y
    else:
        sure = np.maximum(numbers_only(scores), 1 - scores).ravel()
        right = ((scores > 0.5) == (y > 0)).ravel()
    return binned(sure, right, bins)


def binned(sure: Scores, right: NDArray[np.bool_], bins: int = 15) -> Reliability:
    """Answers by their confidence, (n,), and whether they are right, (n,)."""
    edges = np.linspace(0, 1, bins + 1)
    where = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    count = np.bincount(where, minlength=bins)
    return Reliability(
        edges=edges,
        sizes=count.astype(np.int64),
        confidence=_ratio(np.bincount(where, weights=sure, minlength=bins), count),
        accuracy=_ratio(np.bincount(where, weights=right, minlength=bins), count),
    )


# --- multi-label ----------------------------------------------------------------------------------


def average_precision(scores: Scores, y: Labels) -> NDArray[np.float64]:
    """Average precision of each class, (n, C) x (n, C) -> (C,); nan for a class without positives.

    Samples with equal scores count as one step of the ranking.
    """
    return np.array([ranking_precision(scores[:, c], y[:, c]) for c in range(scores.shape[1])])


def ranking_precision(scores: Scores, y: NDArray[Any]) -> float:
    """Average precision of one ranking, (n,) x (n,)."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(y > 0, numbers_only(scores))) if (y > 0).any() else float("nan")


def mean_average_precision(scores: Scores, y: Labels) -> float:
    """Mean of `average_precision` over the classes with positives."""
    return _mean_known(average_precision(scores, y))


def top_decisions(scores: Scores, top: int = 3) -> NDArray[np.bool_]:
    """The ``top`` best classes of each image count as predicted, (n, C); ties: the lower class."""
    predicted = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(predicted, best_classes(scores, top), True, axis=1)
    return predicted


def decisions(predicted: NDArray[np.bool_], y: Labels) -> dict[str, float]:
    """C-P, C-R, C-F1, O-P, O-R, O-F1 of yes-or-no decisions, (n, C) x (n, C).

    C-P and C-R are means over classes (a class never predicted has precision 0, one without
    positives recall 0), C-F1 is the harmonic mean of the two; O- pools all decisions.
    """
    c_p, c_r, _ = (mean(values[: y.shape[1]]) for values in _precision_recall_f1(predicted, y, None))
    o_p, o_r, o_f1 = _precision_recall_f1(predicted, y, "micro")
    by_class = {"C-P": c_p, "C-R": c_r, "C-F1": harmonic(c_p, c_r)}
    return by_class | {"O-P": float(o_p), "O-R": float(o_r), "O-F1": float(o_f1)}


def _precision_recall_f1(
    predicted: NDArray[np.bool_], y: Labels, average: str | None
) -> tuple[Any, Any, Any]:
    """Of yes-or-no decisions, (n, C) x (n, C): scikit-learn's, 0 where there is nothing to divide by.

    It takes a single column for a problem of two classes: a second column then holds nothing.
    """
    from sklearn.metrics import precision_recall_fscore_support

    pad = ((0, 0), (0, int(y.shape[1] == 1)))
    precision, recall, f1, _ = precision_recall_fscore_support(
        np.pad(y > 0, pad), np.pad(predicted, pad), average=average, zero_division=0
    )
    return precision, recall, f1


def multi_label(scores: Scores, y: Labels) -> dict[str, float]:
    """C-P, C-R, C-F1, O-P, O-R, O-F1 of the three best classes of each image, and mAP (macro)."""
    return decisions(top_decisions(scores), y) | {"mAP": mean_average_precision(scores, y)}


def at_threshold(scores: Scores, y: Labels, *, threshold: float = 0.5) -> dict[str, float]:
    """The decisions of ``scores > threshold``, under names such as ``C-F1@0.5``."""
    figures = decisions(numbers_only(scores) > threshold, y)
    return {f"{name}@{threshold:g}": value for name, value in figures.items()}


def released_variants(scores: Scores, y: Labels) -> dict[str, float]:
    """What the authors' released script prints, under names of its own (docs/evaluation.md).

    ``mAP-micro`` ranks all (sample, class) pairs together; the ``-image`` figures are means over
    images of each image's own precision, recall, F1 and average precision. An image without labels
    has recall 0 and no average precision.
    """
    from sklearn.metrics import label_ranking_average_precision_score

    micro = ranking_precision(scores.ravel(), y.ravel())
    p, r, f1 = (float(value) for value in _precision_recall_f1(top_decisions(scores), y, "samples"))
    labelled = (y > 0).any(axis=1)
    by_image = float("nan")
    if labelled.any():
        by_image = float(label_ranking_average_precision_score(y[labelled] > 0, scores[labelled]))
    return {"mAP-micro": micro, "P-image": p, "R-image": r, "F1-image": f1, "mAP-image": by_image}


# --- the whole ------------------------------------------------------------------------------------

# how a sentence calls a metric, and a table; the others are called as they are
METRIC_NAMES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "mAP": "mean average precision"}
SHORT_NAMES = {"top1": "top-1", "top5": "top-5"}


def main_metric(figures: Mapping[str, float]) -> str:
    """The one metric that a sentence names: mAP for multi-label, else the first of the headline."""
    return "mAP" if "mAP" in figures else next(iter(figures), "")


def headline(scores: Scores, y: Labels) -> dict[str, float]:
    """The few figures that stand for a model; samples of no known class (y < 0) do not count."""
    if kind_of(y).multi_label:
        return multi_label(scores, y)
    scores, y = scores[y >= 0], y[y >= 0]
    return {"top1": top_k_accuracy(scores, y, 1), "top5": top_k_accuracy(scores, y, 5)}


def summary(scores: Scores, y: Labels) -> dict[str, float]:
    """Every figure of the task; the labels' shape is the task's, (n,) or (n, C)."""
    if kind_of(y).multi_label:
        more = at_threshold(scores, y) | released_variants(scores, y)
    else:
        more = {"class-top1": _mean_known(class_accuracy(scores, y))}
    return headline(scores, y) | more | {"ECE": reliability(scores, y).ece}


def by_class(scores: Scores, y: Labels) -> NDArray[np.float64]:
    """The figure by which classes are compared, (C,): top-1 accuracy, or average precision."""
    return average_precision(scores, y) if kind_of(y).multi_label else class_accuracy(scores, y)


def harmonic(a: float, b: float) -> float:
    """The harmonic mean; 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def _ratio(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """The quotient, nan where b is 0."""
    share: NDArray[np.float64] = np.full(len(b), np.nan)
    np.divide(a, b, out=share, where=b > 0)
    return share


def mean(values: NDArray[Any]) -> float:
    """The mean; NaN if empty."""
    return float(values.mean()) if values.size else float("nan")


def wilson(share: float, samples: int) -> tuple[float, float]:
    """95 % interval of a share that was measured on some samples of many (Wilson); NaN if empty.

    It stays within 0 and 1, and none right of ten is not "0 exactly". The share need not be a whole number of
    samples, as scipy's has it: multi-label it is of labels, and samples are what was drawn.

    >>> [round(bound, 3) for bound in wilson(0.0, 10)], [round(bound, 3) for bound in wilson(0.8, 200)]
    ([0.0, 0.278], [0.739, 0.85])
    """
    if not samples:
        return float("nan"), float("nan")
    z2 = NORMAL_95**2 / samples
    middle = (share + z2 / 2) / (1 + z2)
    half = float(np.sqrt(z2 * (share * (1 - share) + z2 / 4))) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def _mean_known(values: NDArray[np.float64]) -> float:
    return mean(values[~np.isnan(values)])
