"""Open-set recognition: known classes plus one open class (docs/evaluation.md). Pure.

A sample is open when its highest probability is below t. The curve over T = 101 thresholds costs O(T (n + C)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capro.core.kept_scores import numbers_only
from capro.data.labels import kind_of
from capro.data.readers.webvision import named_in
from capro.errors import DataError, did_you_mean
from capro.files import read_regular
from capro.pipeline.checksums import seed_for
from capro.results.metrics import best_class, harmonic, mean

OPEN = -1  # the label of a sample of no known class
THRESHOLDS = np.arange(101) / 100  # 0, 0.01 ... 1


class Point(NamedTuple):
    """The figures at one threshold."""

    threshold: float
    precision: float  # C-P
    recall: float  # C-R
    f1: float  # C-F1


class Curve(list[Point]):
    """C-P, C-R and C-F1 over the known classes and the open one, by threshold."""

    @property
    def best(self) -> Point:
        """The threshold with the highest C-F1; the lowest of equals. Chosen on what it measures."""
        return max(self, key=lambda point: point.f1)

    @property
    def mean(self) -> float:
        """C-F1 averaged over all thresholds: what the paper's table matches."""
        return float(np.mean([point.f1 for point in self]))

    def at(self, threshold: float) -> Point:
        """The point whose threshold is nearest."""
        return min(self, key=lambda point: abs(point.threshold - threshold))

    def as_dict(self, held_out: float | None = None) -> dict[str, Any]:
        """Plain data: curve, best point, mean, and the point at a threshold chosen elsewhere."""
        return {
            "mean": self.mean,
            "best": self.best._asdict(),
            "held_out": None if held_out is None else self.at(held_out)._asdict(),
            "curve": [point._asdict() for point in self],
        }


def curve(scores: NDArray[np.floating], y: NDArray[np.int64]) -> Curve:
    """The whole curve.

    C-P and C-R are means over those of the C + 1 classes that have test samples, C-F1 is their
    harmonic mean, as for multi-label data. A class without a decision has precision 0.

    Args:
        scores: probabilities of the known classes, (n, C).
        y: true classes, (n,); OPEN (-1) for a sample of none of them.
    """
    n_classes = scores.shape[1]
    if not len(scores):
        raise DataError("no sample to measure open-set recognition on", hint="give data with --on")
    sure, taken = scores.max(axis=1), best_class(scores)
    truth = np.where(y < 0, n_classes, y)  # the open class is the last
    sizes = np.bincount(truth, minlength=n_classes + 1)
    points = Curve()
    for threshold in THRESHOLDS.tolist():
        decided = np.where(sure < threshold, n_classes, taken)
        made, hit = (
            np.bincount(part, minlength=n_classes + 1)[sizes > 0]
            for part in (decided, decided[decided == truth])
        )
        precision, recall = mean(hit / np.maximum(1, made)), mean(hit / sizes[sizes > 0])
        points.append(Point(threshold, precision, recall, harmonic(precision, recall)))
    return points


def answer_curve(scores: NDArray[np.floating], y: NDArray[np.int64]) -> dict[str, list[float | None]]:
    """Answer only at a highest probability of at least t, for t = 0, 0.01 ... 1.

    Args:
        scores: probabilities, (n, C).
        y: true classes, (n,); -1 is outside the known classes.

    Returns:
        By threshold: share of samples that are answered, share of the answers that are right, share
        of wrong answers that are held back, C-F1 over the known classes (and the open one, if
        there is a sample of it), share of open samples that are held back.
    """
    best, right, unknown = scores.max(axis=1), best_class(scores) == y, y < 0
    rows = []
    for point in curve(scores, y):
        answered = best >= point.threshold
        caught = mean(~answered[~right])
        rows.append((mean(answered), mean(right[answered]), caught, point.f1, mean(~answered[unknown])))
    return _columns(("answered", "right", "caught", "f1", "open"), rows)


def label_curve(scores: NDArray[np.floating], y: NDArray[np.int64]) -> dict[str, list[float | None]]:
    """Multi-label: every class with probability at least t is predicted, for t = 0, 0.01 ... 1.

    Returns:
        By threshold: precision, recall and F1 of all decisions, and labels per image.
    """
    rows, there = [], y > 0
    for threshold in THRESHOLDS:
        named = numbers_only(scores) >= threshold
        precision, recall = mean(there[named]), mean(named[there])
        f1 = harmonic(float(np.nan_to_num(precision)), float(np.nan_to_num(recall)))
        rows.append((precision, recall, f1, float(named.sum() / max(1, len(named)))))
    return _columns(("precision", "recall", "f1", "labels"), rows)


def _columns(names: Sequence[str], rows: Sequence[tuple[float, ...]]) -> dict[str, list[float | None]]:
    """Rows as columns by name; what does not exist (nan) is None."""
    columns = zip(*rows, strict=True)
    return {n: [None if np.isnan(x) else x for x in values] for n, values in zip(names, columns, strict=True)}


# --- a threshold from held-out samples ------------------------------------------------------------

RULE = (
    "best C-F1 over the known classes and the open one, where every held-out sample counts twice: "
    "as it is, and as an open one by its scores without its own classes"
)


def as_if_open(scores: NDArray[np.floating], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores as if the samples' own classes had never been learnt, (n, C).

    Single-label: the class leaves the softmax, the rest is rescaled. Multi-label: each class is a question
    of its own, so that the others stay as they are.

    >>> as_if_open(np.array([[0.5, 0.3, 0.2]]), np.array([0])).tolist()
    [[0.0, 0.6, 0.4]]
    """
    rest = np.array(scores, dtype=np.float64)
    if kind_of(y).multi_label:
        rest[y > 0] = 0.0
        return rest
    rest[np.arange(len(y)), y] = 0.0
    mass = rest.sum(axis=1, keepdims=True)
    scaled: NDArray[np.float64] = np.full_like(rest, 1 / scores.shape[1])
    np.divide(rest, mass, out=scaled, where=mass > 0)
    return scaled


def held_out_threshold(scores: NDArray[np.floating], y: NDArray[np.int64]) -> float:
    """A threshold from held-out training samples, which are all of known classes.

    Each sample serves twice: as it is, and as a sample of an unknown class would look. The threshold
    with the best C-F1 of both together is taken; no test sample and no novel class is ever looked
    at. Multi-label: the one known class is "some class", since a sample is open when none
    reaches the threshold.

    Args:
        scores: probabilities, (n, C); C >= 2 for single-label data.
        y: labels, (n,) or (n, C): every sample has one.
    """
    if not _can_choose(scores, y):
        raise DataError(
            f"no threshold from {len(y)} held-out samples of {scores.shape[1]} classes",
            hint="give a val split of 2 classes or more, for example with --split-column",
        )
    both = np.concatenate([np.asarray(scores, dtype=np.float64), as_if_open(scores, y)])
    known = y
    if kind_of(y).multi_label:
        both, known = both.max(axis=1, keepdims=True), np.zeros(len(y), dtype=np.int64)
    whole = np.concatenate([known, np.full(len(y), OPEN)])
    return curve(both, whole).best.threshold


def _can_choose(scores: NDArray[np.floating], y: NDArray[np.int64]) -> bool:
    """Whether there is a sample, and another class that it could be."""
    return len(y) > 0 and (kind_of(y).multi_label or scores.shape[1] > 1)


def held_out(scores: NDArray[np.floating], y: NDArray[np.int64], *, origin: str) -> dict[str, Any]:
    """``held_out_threshold`` as plain data, with what it does to the samples it was chosen on.

    Args:
        scores: probabilities of held-out samples, (n, C).
        y: their labels, (n,) or (n, C).
        origin: which samples they are, for the reader.

    Returns:
        ``threshold`` (None where there is nothing to choose it from), ``known`` with the share that
        it keeps, ``open`` with the share that it rejects, ``rule``.
    """
    chosen, kept, rejected = None, None, None
    if _can_choose(scores, y):
        chosen = held_out_threshold(scores, y)
        kept = float((scores.max(axis=1) >= chosen).mean())
        rejected = float((as_if_open(scores, y).max(axis=1) < chosen).mean())
    return {
        "threshold": chosen,
        "known": {"from": origin, "samples": len(y), "kept": kept},
        "open": {"from": "the same without their own classes", "rejected": rejected},
        "rule": RULE,
    }


def in_words(found: Mapping[str, Any]) -> str:
    """What ``held_out`` found, in one line: what a threshold costs is said wherever it is used.

    >>> known, others = {"from": "val samples", "samples": 50, "kept": 0.66}, {"rejected": 0.9}
    >>> in_words({"threshold": 0.52, "known": known, "open": others})
    'open-set threshold 0.52: rejects 34 % of images of known classes and 90 % of others (50 val samples)'
    """
    if found["threshold"] is None:
        return "no open-set threshold, since there were no samples to choose it on"
    known, rejected = found["known"], found["open"]["rejected"]
    return (
        f"open-set threshold {found['threshold']:.2f}: rejects {100 * (1 - known['kept']):.0f} % of images "
        f"of known classes and {100 * rejected:.0f} % of others ({known['samples']:,} {known['from']})"
    )


# --- class lists ----------------------------------------------------------------------------------


def split_classes(
    names: Sequence[str], *, novel_share: float = 0.5, seed: int = 0
) -> tuple[list[str], list[str]]:
    """Known and novel classes, drawn by the seed, each in the order of ``names``.

    >>> split_classes(["a", "b", "c", "d"], novel_share=0.25, seed=1)
    (['a', 'c', 'd'], ['b'])
    """
    if not 0 < novel_share < 1 or len(names) < 3:
        raise DataError(
            f"no split of {len(names)} classes with a novel share of {novel_share}",
            hint="give a share between 0 and 1 that leaves 2 known classes or more and 1 novel class or more",
        )
    count = min(len(names) - 2, max(1, round(novel_share * len(names))))
    rng = np.random.default_rng(seed_for(seed, "novel classes"))
    chosen = set(rng.permutation(len(names))[:count].tolist())
    known = [name for number, name in enumerate(names) if number not in chosen]
    return known, [name for number, name in enumerate(names) if number in chosen]


def read_class_list(path: Path, known: Sequence[str], ids: Mapping[str, str] | None = None) -> list[str]:
    """Names of a class list, one per line; empty lines and ``#`` comments do not count.

    Args:
        path: The file. A line is a name, or has a WordNet id in it, as in the lists of WebVision's users.
        known: The names there are; any other is an error.
        ids: From WordNet ids to names.
    """
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", hint="one class per line") from None
    names = []
    for number, line in enumerate(lines, start=1):
        whole = line.strip()
        text = whole.partition("#")[0].strip()
        if not text:
            continue
        name = next((name for name in (whole, text, (ids or {}).get(named_in(text))) if name in known), None)
        if name is None:
            raise DataError(f"{path}:{number}: no class '{text}'", hint=did_you_mean(text, known))
        names.append(name)
    if not names:
        raise DataError(f"{path}: names no class", hint="one class per line")
    return list(dict.fromkeys(names))
