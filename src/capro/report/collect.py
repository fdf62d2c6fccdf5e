"""From a run directory to plain data: everything that the page shows, nothing of how it looks.

What is embedded is capped, and the data says how many of how many are shown. Figures come from
`capro.results`; none is computed here. Costs: t-SNE, ten seconds for 3,000 points; a k-NN graph for the
matches; a few thousand thumbnails.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

from capro import __version__
from capro.core.anchors import anchor_choice
from capro.data.summary import scan_problems
from capro.pipeline.plan import Plan
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.report import sentences
from capro.report.galleries import Shown, anchors_protected, class_galleries, embedding, samples, top_matches
from capro.report.load import Loaded, load
from capro.results import label_changes, metrics, open_set
from capro.results.comparison import jsonable
from capro.results.label_changes import KINDS, LabelChanges, class_findings, finding_text
from capro.wording import plain

FLOW_CLASSES = 18
MATRIX_CLASSES = 40
WORST = 3  # noisy classes named in the summary


def collect(run: Run, plan: Plan, *, held_out: str, title: str | None = None, watch: Watch = SILENT) -> Any:
    """Everything the page shows, as JSON-like data; ``load`` says what the arguments are."""
    found = load(run, plan, held_out=held_out)
    shown = Shown()
    data = {
        "title": plain(title or f"Report of {run.path.resolve().name}"),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "task": "multi" if found.multi else "single",
        "classes": [plain(name, 80) for name in found.names],
        "meanings": [plain(text, 200) for text in found.meanings],
        "missing": found.missing,
        "stages": [
            {"name": name, "seconds": done and done["seconds"], "done": done is not None}
            for name, done in found.stages.items()
        ],
        "comparison": comparison(found),
        "curves": curves(found),
        **cleaning(found, shown),
        **measured(found),
    }
    data["findings"] = findings(found, shown)
    data["no_texts"] = found.texts is not None and not np.asarray(found.texts).any()
    data["matches"] = None if data["no_texts"] else top_matches(found, shown, watch)
    data["map"] = embedding(found, shown, watch)
    data["summary"] = summary(found, data)
    data["samples"], data["sheets"] = samples(found, shown, watch)
    return jsonable(data)


# --- labels ---------------------------------------------------------------------------------------


def cleaning(found: Loaded, shown: Shown) -> dict[str, Any]:
    """What became of every (sample, class); None before the clean stage."""
    if found.after is None:
        return dict.fromkeys(("noise", "flow", "matrix", "galleries"))
    anchored = np.zeros(found.given.shape, dtype=bool)
    if found.anchors is not None and anchors_protected(found):
        rows, columns = (found.anchors[name].to_numpy(np.int64) for name in ("row", "class_index"))
        anchored[(rows, columns) if found.multi else (rows,)] = True
    changes = label_changes.label_changes(found.given, np.asarray(found.after), anchored)
    return {
        "noise": noise(found, changes),
        "flow": label_flow(found),
        "matrix": label_matrix(found),
        "galleries": class_galleries(found, changes, shown),
    }


def noise(found: Loaded, changes: LabelChanges) -> dict[str, Any]:
    """Verdicts by class, noisiest first, and in total."""
    counts = changes.counts(len(found.names))
    lost = counts[:, label_changes.AWAY] + counts[:, label_changes.DROP]
    given = counts.sum(axis=1) - counts[:, label_changes.ARRIVED]
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
    matrix = label_changes.flow(found.given, np.asarray(found.after), len(found.names))
    small, kept = label_changes.bundle(matrix, FLOW_CLASSES)
    small[-1, -1] = 0  # samples that had no class and got none
    source, target = np.nonzero(small)
    links = np.stack([source, target, small[source, target]], axis=1).tolist()
    return {"classes": kept, "links": links, "of": len(found.names)}


def label_matrix(found: Loaded) -> dict[str, Any]:
    """Given by corrected, of the classes with most change."""
    matrix = label_changes.given_by_corrected(found.given, np.asarray(found.after), len(found.names))
    kept = label_changes.most_off_diagonal(matrix[:, :-1], MATRIX_CLASSES)
    part = matrix[kept][:, [*kept, matrix.shape[1] - 1]].toarray()
    return {"classes": kept, "cells": part.tolist(), "of": len(found.names)}


def curves(found: Loaded) -> dict[str, Any] | None:
    """Figures by epoch and stage; verdicts only from the epoch on in which labels are corrected."""
    first = found.run.settings.train.correct_after
    shares = {"anchor", "keep", "relabel", "drop", "add", "remove"}

    def known(stage: str, row: dict[str, float]) -> dict[str, float]:
        early = stage == "train" and row["epoch"] < first
        return {key: value for key, value in row.items() if not (early and key in shares)}

    return {stage: [known(stage, row) for row in rows] for stage, rows in found.history.items()} or None


# --- results --------------------------------------------------------------------------------------


def comparison(found: Loaded) -> dict[str, Any] | None:
    """Vanilla and CAPro by metric, and the classes made worse and better."""
    if set(found.results) != {"vanilla", "capro"} or found.evaluated is None:
        return None
    before, after = found.results["vanilla"], found.results["capro"]
    place = {name: number for number, name in enumerate(found.names)}
    changes = [
        {
            "label": place[row["class"]],
            "samples": row["samples"],
            "before": row["vanilla"],
            "after": row["capro"],
            "change": row["difference"],
        }
        for row in found.evaluated.compare(found.classes)["classes"]
    ]
    return {
        "metrics": [
            {"name": name, "vanilla": before[name], "capro": after[name]} for name in before if name in after
        ],
        "main": sentences.main_metric(found.results),
        "changes": sorted(changes, key=lambda row: (row["change"], row["label"])),
        "tests": len(found.evaluated.labels),
        "interval": found.evaluated.interval(),
    }


def measured(found: Loaded) -> dict[str, Any]:
    """Confusion, reliability and threshold curves on the test images."""
    if found.evaluated is None:
        return dict.fromkeys(("confusion", "reliability", "threshold", "held_out"))
    scores, labels = found.evaluated.known()
    curve = open_set.label_curve if found.multi else open_set.answer_curve
    data: dict[str, Any] = {
        "confusion": None,
        "reliability": {name: _diagram(values, labels) for name, values in scores.items()},
        "threshold": {
            name: curve(values, found.evaluated.labels) for name, values in found.evaluated.scores.items()
        },
        "held_out": None if found.multi else sentences.chosen_threshold(found.held_out),
    }
    if not found.multi:
        whole = {name: metrics.confusion(values, labels) for name, values in scores.items()}
        kept = label_changes.most_off_diagonal(sum(whole.values()), MATRIX_CLASSES)  # type: ignore[arg-type]
        data["confusion"] = {
            "classes": kept,
            "of": len(found.names),
            **{name: matrix[kept][:, kept].toarray().tolist() for name, matrix in whole.items()},
        }
    return data


def _diagram(scores: Any, labels: Any) -> dict[str, Any]:
    """A reliability diagram by column, as the page draws it."""
    found = metrics.reliability(scores, labels).as_dict()
    columns = {name: [row[name] for row in found["bins"]] for name in ("confidence", "accuracy", "count")}
    return {**columns, "ece": found["ece"], "bins": sum(count > 0 for count in columns["count"])}


def findings(found: Loaded, shown: Shown) -> list[dict[str, Any]]:
    """Classes with something wrong, with the pictures that show it."""
    ids = found.manifest.samples["id"].iloc[found.train].tolist()
    place = {identity: row for row, identity in enumerate(ids)}
    return [
        {
            "text": plain(finding_text(each), 300),
            "items": shown.add([place[identity] for identity in each["samples"]], large=True),
        }
        for each in class_findings(found.run)
    ]


def summary(found: Loaded, data: dict[str, Any]) -> list[dict[str, str]]:
    """The four parts of the summary, in plain sentences."""
    total = data["noise"]["total"] if data["noise"] else None
    without = found.run.settings.data.without_texts
    problems = [text[:1].upper() + text[1:] for text in scan_problems(found.summary, without_texts=without)]
    if total:
        worst = [(data["classes"][row["label"]], float(row["share"])) for row in data["noise"]["classes"]]
        problems.insert(0, sentences.was_wrong(total, worst[:WORST], multi=found.multi))
    else:
        problems.append(found.missing.get("clean", "There are no verdicts on the labels yet."))
    anchors = {} if found.anchors is None else dict(Counter(anchor_choice(found.anchors).tolist()))
    done = sentences.was_done(total, anchors, multi=found.multi)
    results = data["comparison"]
    if results is None:
        gain = found.missing.get("evaluate", "Nothing was measured on test images.")
    else:
        gain = sentences.brought(
            found.results, results["changes"], data["classes"], tests=results["tests"],
            interval=results["interval"],
        )  # fmt: skip
    return [
        {"name": "What came in", "text": sentences.came_in(found.summary)},
        {"name": "What was wrong with it", "text": " ".join(problems)},
        {"name": "What was done", "text": done or found.missing.get("match", "Nothing yet.")},
        {"name": "What it brought", "text": gain},
    ]
