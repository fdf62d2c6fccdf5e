"""Vanilla against CAPro: the one source of the figures that terminal, report and model card show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.data.labels import Labels, kind_of, known_labels
from capro.data.manifest import manifest_of
from capro.models.classes import ClassSpec, classes_of
from capro.pipeline.artefacts import SCORES
from capro.pipeline.run import Run
from capro.results import metrics
from capro.results.metrics import Scores

SHOWN_PAIRS = 10  # confusions, the most frequent ones
Z95 = 1.96  # standard errors on either side of a 95 % interval


@dataclass(frozen=True)
class Evaluated:
    """Scores of some samples by both models, and what is right."""

    name: str
    labels: Labels  # (n,) with -1 for no known class, or (n, C)
    names: list[str]  # the label of each sample as the source has it, for open classes
    scores: Mapping[str, Scores]  # by method, (n, C)

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """Single-label samples whose label is no class of the run, (n,)."""
        kind = kind_of(self.labels)
        return np.zeros(len(self.labels), dtype=bool) if kind.multi_label else ~kind.labelled(self.labels)

    def known(self) -> tuple[Mapping[str, Scores], Labels]:
        """Scores and labels of the samples that are of a known class."""
        rows = ~self.is_open
        return {name: scores[rows] for name, scores in self.scores.items()}, self.labels[rows]

    def compare(self, specs: list[ClassSpec]) -> dict[str, Any]:
        """``compare`` on the samples of known classes."""
        scores, labels = self.known()
        ambiguous = np.array([bool(spec.ambiguous) for spec in specs])
        return compare(scores, labels, [spec.name for spec in specs], ambiguous)

    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the gain in top-1 accuracy on the samples of known classes; None for multi-label data."""
        scores, labels = self.known()
        multi_label = kind_of(labels).multi_label
        return None if multi_label else paired_interval(scores["vanilla"], scores["capro"], labels)


def test_split(run: Run) -> Evaluated | None:
    """The run's own test samples, from the scores that the evaluate stage stored; None without any."""
    manifest = manifest_of(run)
    test = manifest.split("test")
    stored = {name: run.find(artefact) for name, artefact in SCORES.items()}
    scores = {name: np.array(values) for name, values in stored.items() if values is not None}
    if not len(test) or any(len(values) != len(test) for values in scores.values()) or len(scores) < 2:
        return None
    names = [row[0] if row else "" for row in manifest.samples["labels"].iloc[test]]
    classes = [spec.name for spec in classes_of(run)]
    return Evaluated("test split", known_labels(manifest, test, classes), names, scores)


def compare(
    scores: Mapping[str, Scores], y: Labels, classes: list[str], ambiguous: NDArray[np.bool_]
) -> dict[str, Any]:
    """Metrics, classes (made worse first), confusions, calibration; ambiguous classes apart.

    Args:
        scores: ``vanilla`` and ``capro``, (n, C) each.
        y: (n,) classes or (n, C) membership, no open sample.
        classes: Names, (C,).
        ambiguous: Whose names have several senses, (C,).
    """
    whole = {name: metrics.summary(values, y) for name, values in scores.items()}
    change = {key: whole["capro"][key] - whole["vanilla"][key] for key in whole["vanilla"]}
    rows = _class_rows(scores, y, classes, ambiguous)
    gains = [row["difference"] for row in rows]
    comparison = {
        "methods": whole,
        "difference": change,
        "classes": rows,
        "class_figure": "AP" if kind_of(y).multi_label else "top1",
        "worse": sum(gain < 0 for gain in gains),
        "equal": sum(gain == 0 for gain in gains),
        "better": sum(gain > 0 for gain in gains),
        "confusion": {name: _pairs(values, y, classes) for name, values in scores.items()},
        "calibration": {name: metrics.reliability(values, y).as_dict() for name, values in scores.items()},
    }
    if ambiguous.any():
        comparison["ambiguous"] = _apart(scores, y, ambiguous)
        comparison["unambiguous"] = _apart(scores, y, ~ambiguous)
    return comparison


def _class_rows(
    scores: Mapping[str, Scores], y: Labels, classes: list[str], ambiguous: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """One row per class with test samples, the most harmed first."""
    sizes = kind_of(y).counts(y, len(classes))
    before, after = (metrics.by_class(scores[name], y) for name in ("vanilla", "capro"))
    rows = [
        {
            "class": name,
            "samples": int(sizes[c]),
            "vanilla": float(before[c]),
            "capro": float(after[c]),
            "difference": float(after[c] - before[c]),
            "ambiguous": bool(ambiguous[c]),
        }
        for c, name in enumerate(classes)
        if sizes[c]
    ]
    return sorted(rows, key=lambda row: (row["difference"], row["class"]))


def _pairs(scores: Scores, y: Labels, classes: list[str]) -> list[dict[str, Any]]:
    kind = kind_of(y)
    matrix = (metrics.confusion_multi if kind.multi_label else metrics.confusion)(scores, y)
    pairs = metrics.confusion_pairs(matrix, kind.counts(y, len(classes)), top=SHOWN_PAIRS)
    return [
        {"true": classes[true], "taken_for": classes[taken], "count": times, "share": share}
        for true, taken, times, share in pairs
    ]


def _apart(scores: Mapping[str, Scores], y: Labels, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    """The figures of some classes alone; single-label: of their samples against all classes."""
    figures: dict[str, Any] = {"classes": int(chosen.sum())}
    for name, values in scores.items():
        if kind_of(y).multi_label:
            own = metrics.decisions(metrics.top_decisions(values)[:, chosen], y[:, chosen])
            figures[name] = own | {"mAP": metrics.mean_average_precision(values[:, chosen], y[:, chosen])}
        else:
            rows = chosen[y]
            figures["samples"] = int(rows.sum())
            figures[name] = metrics.headline(values[rows], y[rows])
    return figures


def paired_interval(vanilla: Scores, capro: Scores, y: Labels) -> tuple[float, float]:
    """95 % interval of the difference in top-1 accuracy, from the samples on which the two differ.

    Args:
        vanilla: (n, C).
        capro: (n, C).
        y: true classes, (n,), no open sample: the difference leaves those out as well.
    """
    one, two = ((metrics.best_class(scores) == y).astype(np.float64) for scores in (vanilla, capro))
    each = two - one
    error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("nan")
    return float(each.mean() - Z95 * error), float(each.mean() + Z95 * error)


def jsonable(value: Any) -> Any:
    """The same data in types that JSON has; figures that do not exist (nan) become None.

    >>> jsonable({1: (np.float32(0.5), float("nan"))})
    {'1': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
