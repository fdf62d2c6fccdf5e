"""From a run directory to plain data: everything that the page shows, nothing of how it looks.

What is embedded is capped, and the data says how many of how many are shown. Costs: t-SNE, ten
seconds for 3,000 points; a k-NN graph for the matches; a few thousand thumbnails.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from capro import __version__, progress
from capro.report import figures, words
from capro.report.figures import KINDS, Pairs
from capro.report.images import (
    Shown,
    anchors_protected,
    class_galleries,
    embedding,
    samples,
    top_matches,
)
from capro.report.load import STAGES, Loaded, load
from capro.runs import Run

FLOW_CLASSES = 18
MATRIX_CLASSES = 40
WORST = 3  # noisy classes named in the summary


def collect(run: Run, *, title: str | None = None, bar: progress.Bar = progress.silent) -> Any:
    """Everything the page shows, as JSON-like data."""
    found = load(run)
    verdicts = labels_and_verdicts(found)
    shown = Shown()
    data = {
        "title": words.plain(title or f"Report of {run.path.resolve().name}"),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "task": "multi" if found.multi else "single",
        "classes": [words.plain(name, 80) for name in found.names],
        "meanings": [words.plain(text, 200) for text in found.meanings],
        "missing": found.missing,
        "stages": [_stage(found, name) for name in STAGES],
        "comparison": comparison(found),
        "curves": curves(found),
        "noise": None if verdicts is None else noise(found, verdicts),
        "flow": None if verdicts is None else label_flow(found),
        "matrix": None if verdicts is None else label_matrix(found),
        "galleries": None if verdicts is None else class_galleries(found, verdicts, shown),
        **measured(found),
    }
    data["matches"] = top_matches(found, shown, bar)
    data["map"] = embedding(found, shown, bar)
    data["summary"] = summary(found, data)
    data["samples"], data["sheets"] = samples(found, shown, bar)
    return finite(data)


def finite(value: Any) -> Any:
    """The same data in types that JSON has; what is not a number becomes None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _stage(found: Loaded, name: str) -> dict[str, Any]:
    done = found.stages.get(name)
    return {"name": name, "seconds": done["seconds"] if done else None, "done": done is not None}


# --- labels ---------------------------------------------------------------------------------------


def labels_and_verdicts(found: Loaded) -> Pairs | None:
    """Every (sample, class) and what became of it; None before the clean stage."""
    if found.after is None:
        return None
    anchored = np.zeros(found.given.shape, dtype=bool)
    if found.anchors is not None and anchors_protected(found):
        rows = found.anchors["row"].to_numpy(np.int64)
        if found.multi:
            anchored[rows, found.anchors["class_index"].to_numpy(np.int64)] = True
        else:
            anchored[rows] = True
    return figures.pairs(found.given, np.asarray(found.after), anchored)


def noise(found: Loaded, verdicts: Pairs) -> dict[str, Any]:
    """Verdicts by class, noisiest first, and in total."""
    counts = verdicts.counts(len(found.names))
    lost = counts[:, figures.AWAY] + counts[:, figures.DROP]
    given = counts.sum(axis=1) - counts[:, figures.ARRIVED]
    share = lost / np.maximum(1, given)
    order = np.lexsort((np.arange(len(share)), -share))
    return {
        "kinds": KINDS,
        "total": dict(zip(KINDS, counts.sum(axis=0).tolist(), strict=True)),
        "classes": [
            {"label": c, "share": share[c], "given": given[c], "counts": counts[c].tolist()}
            for c in order.tolist()
        ],
    }


def label_flow(found: Loaded) -> dict[str, Any]:
    """Labels from where to where; small changes of many classes are bundled."""
    matrix = figures.flow(found.given, np.asarray(found.after), len(found.names))
    small, kept = figures.bundle(matrix, FLOW_CLASSES)
    source, target = np.nonzero(small)
    last = len(small) - 1
    links = [
        [int(s), int(t), int(small[s, t])]
        for s, t in zip(source, target, strict=True)
        if s != last or t != last
    ]
    return {"classes": kept, "links": links, "of": len(found.names)}


def label_matrix(found: Loaded) -> dict[str, Any]:
    """Given by corrected, of the classes with most change."""
    matrix = figures.given_by_corrected(found.given, np.asarray(found.after), len(found.names))
    kept = figures.most_off_diagonal(matrix[:, :-1], MATRIX_CLASSES)
    part = matrix[np.ix_(kept, [*kept, matrix.shape[1] - 1])]
    return {"classes": kept, "cells": part.tolist(), "of": len(found.names)}


def curves(found: Loaded) -> dict[str, Any] | None:
    """Figures by epoch and stage; verdicts only from the epoch on in which labels are corrected."""
    first = found.run.settings.train.correct_after
    shares = {"anchor", "keep", "relabel", "drop", "add", "remove"}
    kept = {
        stage: [
            {key: row[key] for key in row if row["epoch"] >= first or key not in shares}
            if stage == "train"
            else row
            for row in rows
        ]
        for stage, rows in found.history.items()
    }
    return kept or None


# --- results --------------------------------------------------------------------------------------


def comparison(found: Loaded) -> dict[str, Any] | None:
    """Vanilla and CAPro by metric, and the classes made worse and better."""
    if set(found.results) != {"vanilla", "capro"}:
        return None
    changes: list[dict[str, Any]] = []
    interval = None
    if len(found.scores) == 2:
        vanilla, capro = found.scores["vanilla"], found.scores["capro"]
        changes = figures.class_changes(vanilla, capro, found.truth)
        if not found.multi:
            interval = figures.paired_interval(vanilla, capro, found.truth)
    metrics = [
        {
            "name": name,
            "vanilla": found.results["vanilla"][name],
            "capro": found.results["capro"][name],
        }
        for name in found.results["vanilla"]
        if name in found.results["capro"]
    ]
    main = words.main_metric(found.results)
    return {
        "metrics": metrics,
        "main": main,
        "changes": changes,
        "tests": len(found.test),
        "interval": interval,
    }


def measured(found: Loaded) -> dict[str, Any]:
    """Confusion, reliability and threshold curves on the test images."""
    if len(found.scores) < 2 or not len(found.test):
        return {"confusion": None, "reliability": None, "threshold": None, "held_out": None}
    scores = found.scores
    threshold = figures.label_threshold if found.multi else figures.open_set
    data: dict[str, Any] = {
        "confusion": None,
        "reliability": {name: figures.reliability(s, found.truth) for name, s in scores.items()},
        "threshold": {name: threshold(s, found.truth) for name, s in scores.items()},
        "held_out": None if found.multi else words.chosen_threshold(found.held_out),
    }
    if not found.multi:
        whole = {name: figures.confusion(s, found.truth) for name, s in scores.items()}
        kept = figures.most_off_diagonal(sum(whole.values()), MATRIX_CLASSES)  # type: ignore[arg-type]
        data["confusion"] = {
            "classes": kept,
            "of": len(found.names),
            **{name: matrix[np.ix_(kept, kept)].tolist() for name, matrix in whole.items()},
        }
    return data


def summary(found: Loaded, data: dict[str, Any]) -> list[dict[str, str]]:
    """The four parts of the summary, in plain words."""
    total = data["noise"]["total"] if data["noise"] else None
    problems = words.scan_problems(found.summary)
    if total:
        worst = [
            (data["classes"][row["label"]], float(row["share"])) for row in data["noise"]["classes"]
        ]
        problems.insert(0, words.was_wrong(total, worst[:WORST], multi=found.multi))
    else:
        problems.append(found.missing.get("clean", "There are no verdicts on the labels yet."))
    anchors = None if found.anchors is None else len(found.anchors)
    done = words.was_done(total, anchors, multi=found.multi)
    results = data["comparison"]
    if results is None:
        gain = found.missing.get("evaluate", "Nothing was measured on test images.")
    else:
        gain = words.brought(
            found.results, results["changes"], data["classes"], tests=results["tests"],
            interval=results["interval"],
        )  # fmt: skip
    return [
        {"name": "What came in", "text": words.came_in(found.summary)},
        {"name": "What was wrong with it", "text": " ".join(problems)},
        {"name": "What was done", "text": done or found.missing.get("match", "Nothing yet.")},
        {"name": "What it brought", "text": gain},
    ]
