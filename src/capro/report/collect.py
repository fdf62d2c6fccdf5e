"""From a run directory to plain data: everything that the page shows, nothing of how it looks.

What is embedded is capped, and the data says how many of how many are shown. Figures come from
`capro.results`; none is computed here. Costs: t-SNE, ten seconds for 3,000 points; a k-NN graph for the
matches; a few thousand thumbnails.
"""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

from capro import __version__
from capro.core.anchors import anchor_choice
from capro.data.summary import scan_problems
from capro.models.classes import class_text, has_meaning
from capro.pipeline.artefacts import CLEANED_LABELS, ENHANCED_TEXTS, HISTORIES, MODELS, SUMMARY, TEXTS, VISUAL
from capro.pipeline.plan import Plan
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.report import sentences
from capro.report.galleries import Shown, class_galleries, dropped, embedding, samples, top_matches
from capro.results import label_changes, metrics, open_set
from capro.results.comparison import Evaluated, jsonable, test_split
from capro.results.label_changes import KINDS, class_findings, finding_text
from capro.results.store import VerdictStore
from capro.wording import plain

FLOW_CLASSES = 18
MATRIX_CLASSES = 40
WORST = 3  # noisy classes named in the summary


def collect(run: Run, plan: Plan, *, held_out: str, title: str | None = None, watch: Watch = SILENT) -> Any:
    """Everything the page shows, as JSON-like data; only the scan is required.

    Args:
        run: The run.
        plan: Its stages.
        held_out: Name of the stage that chose CAPro's open-set threshold.
        title: Of the page.
        watch: Shows progress.
    """
    store = VerdictStore(run)
    stages = {stage.name: run.finished(stage.name) for stage in plan.of(run.settings)}
    evaluated = test_split(run) if stages["evaluate"] else None
    missing = absent_parts(store, stages, evaluated)
    shown = Shown()
    data = {
        "title": plain(title or f"Report of {run.path.resolve().name}"),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "task": store.kind.task,
        "classes": [plain(name, 80) for name in store.names],
        "meanings": [plain(class_text(spec) if has_meaning(spec) else "", 200) for spec in store.classes],
        "missing": missing,
        "stages": [
            {"name": name, "seconds": done and done["seconds"], "done": done is not None}
            for name, done in stages.items()
        ],
        "comparison": comparison(store, evaluated),
        "curves": curves(run),
        **cleaning(store, shown),
        **measured(store, evaluated, held_out),
    }
    data["findings"] = findings(store, shown)
    texts = store.array(TEXTS)
    data["no_texts"] = texts is not None and not np.asarray(texts).any()
    data["matches"] = None if data["no_texts"] else top_matches(store, shown, watch)
    data["map"] = embedding(store, shown, watch)
    data["summary"] = summary(store, data)
    data["samples"], data["sheets"] = samples(store, shown, watch)
    return jsonable(data)


def absent_parts(
    store: VerdictStore, stages: dict[str, dict[str, Any] | None], evaluated: Evaluated | None
) -> dict[str, str]:
    """A sentence for each stage that has not finished, or whose result belongs to another scan."""
    command = f"capro run --run {shlex.quote(store.run.place)}"
    missing = {
        name: f"The {name} stage has not finished: `{command}` does it."
        for name, done in stages.items()
        if done is None
    }
    arrays = (TEXTS, VISUAL, ENHANCED_TEXTS, CLEANED_LABELS)
    other_scan = [each.stage for each in arrays if stages.get(each.stage) and store.array(each) is None]
    if stages["evaluate"] and evaluated is None:
        other_scan.append("evaluate")
    for name in other_scan:
        missing[name] = f"The result of the {name} stage does not fit the scan: `{command}` does it again."
    if stages["evaluate"] and "test" not in store.run.read(SUMMARY)["splits"]:
        missing["evaluate"] = (
            "The data have no test split, so nothing was measured on test images: "
            "give one with `data.test` or a split column."
        )
    return missing


# --- labels ---------------------------------------------------------------------------------------


def cleaning(store: VerdictStore, shown: Shown) -> dict[str, Any]:
    """What became of every (sample, class); None before the clean stage."""
    if not store.has_verdicts:
        return dict.fromkeys(("noise", "flow", "matrix", "dropped", "galleries"))
    return {
        "noise": noise(store),
        "flow": label_flow(store),
        "matrix": label_matrix(store),
        "dropped": dropped(store, shown),
        "galleries": class_galleries(store, shown),
    }


def noise(store: VerdictStore) -> dict[str, Any]:
    """Verdicts by class, noisiest first, and in total."""
    counts = store.changes.counts(len(store.names))
    given, share = label_changes.given_count(counts), label_changes.wrong_share(counts)
    order = np.lexsort((np.arange(len(share)), -share))
    return {
        "kinds": KINDS,
        "total": dict(zip(KINDS, counts.sum(axis=0).tolist(), strict=True)),
        "classes": [
            {"label": c, "share": share[c], "given": given[c], "counts": counts[c].tolist()}
            for c in order.tolist()
        ],
    }


def label_flow(store: VerdictStore) -> dict[str, Any]:
    """Labels from where to where; small changes of many classes are bundled."""
    matrix = label_changes.flow(store.given, store.corrected, len(store.names))
    small, kept = label_changes.bundle(matrix, FLOW_CLASSES)
    small[-1, -1] = 0  # samples that had no class and got none
    source, target = np.nonzero(small)
    links = np.stack([source, target, small[source, target]], axis=1).tolist()
    return {"classes": kept, "links": links, "of": len(store.names)}


def label_matrix(store: VerdictStore) -> dict[str, Any]:
    """Given by corrected, of the classes with most change."""
    matrix = label_changes.given_by_corrected(store.given, store.corrected, len(store.names))
    kept = label_changes.most_off_diagonal(matrix[:, :-1], MATRIX_CLASSES)
    part = matrix[kept][:, [*kept, matrix.shape[1] - 1]].toarray()
    return {"classes": kept, "cells": part.tolist(), "of": len(store.names)}


def curves(run: Run) -> dict[str, Any] | None:
    """Figures by epoch and stage; verdicts only from the epoch on in which labels are corrected."""
    first = run.settings.train.correct_after
    shares = {"anchor", "keep", "relabel", "drop", "add", "remove"}

    def known(stage: str, row: dict[str, float]) -> dict[str, float]:
        early = stage == "train" and row["epoch"] < first
        return {key: value for key, value in row.items() if not (early and key in shares)}

    histories = {stage: run.find(artefact) for stage, artefact in HISTORIES.items()}
    return {stage: [known(stage, row) for row in rows] for stage, rows in histories.items() if rows} or None


# --- results --------------------------------------------------------------------------------------


def comparison(store: VerdictStore, evaluated: Evaluated | None) -> dict[str, Any] | None:
    """Vanilla and CAPro by metric, and the classes made worse and better."""
    if evaluated is None:
        return None
    results = store.run.result("evaluate")
    before, after = results["vanilla"], results["capro"]
    number = {name: number for number, name in enumerate(store.names)}
    changes = [
        {
            "label": number[row["class"]],
            "samples": row["samples"],
            "before": row["vanilla"],
            "after": row["capro"],
            "change": row["difference"],
        }
        for row in evaluated.compare(store.classes)["classes"]
    ]
    return {
        "metrics": [
            {"name": name, "vanilla": before[name], "capro": after[name]} for name in before if name in after
        ],
        "main": metrics.main_metric(before),
        "changes": sorted(changes, key=lambda row: (row["change"], row["label"])),
        "tests": len(evaluated.labels),
        "interval": evaluated.interval(),
    }


def measured(store: VerdictStore, evaluated: Evaluated | None, held_out: str) -> dict[str, Any]:
    """Confusion, reliability and threshold curves on the test images."""
    if evaluated is None:
        return dict.fromkeys(("confusion", "reliability", "threshold", "held_out"))
    scores, labels = evaluated.known()
    curve = open_set.label_curve if store.multi_label else open_set.answer_curve
    data: dict[str, Any] = {
        "confusion": None,
        "reliability": {name: _diagram(values, labels) for name, values in scores.items()},
        "threshold": {name: curve(values, evaluated.labels) for name, values in evaluated.scores.items()},
        "held_out": None,
    }
    if not store.multi_label:
        data["held_out"] = _chosen_threshold(store.run, held_out)
        whole = {name: metrics.confusion(values, labels) for name, values in scores.items()}
        kept = label_changes.most_off_diagonal(sum(whole.values()), MATRIX_CLASSES)  # type: ignore[arg-type]
        data["confusion"] = {
            "classes": kept,
            "of": len(store.names),
            **{name: matrix[kept][:, kept].toarray().tolist() for name, matrix in whole.items()},
        }
    return data


def _chosen_threshold(run: Run, stage: str) -> dict[str, Any] | None:
    """The open-set threshold, if it was chosen for the model that is there now, and on which samples."""
    made, model = run.stamp(stage), run.stamp(MODELS["capro"].stage)
    if made is None or model is None or made < model:
        return None
    chosen = run.result(stage)
    return sentences.chosen_threshold(chosen) if chosen.get("threshold") is not None else None


def _diagram(scores: Any, labels: Any) -> dict[str, Any]:
    """A reliability diagram by column, as the page draws it."""
    found = metrics.reliability(scores, labels).as_dict()
    columns = {name: [row[name] for row in found["bins"]] for name in ("confidence", "accuracy", "count")}
    return {**columns, "ece": found["ece"], "bins": sum(count > 0 for count in columns["count"])}


def findings(store: VerdictStore, shown: Shown) -> list[dict[str, Any]]:
    """Classes with something wrong, with the pictures that show it."""
    return [
        {
            "text": plain(finding_text(each), 300),
            "items": shown.add(store.rows_of(each["samples"]).tolist(), large=True),
        }
        for each in class_findings(store.run)
    ]


def summary(store: VerdictStore, data: dict[str, Any]) -> list[dict[str, str]]:
    """The four parts of the summary, in plain sentences."""
    missing, multi_label, scanned = data["missing"], store.multi_label, dict(store.run.read(SUMMARY))
    total = data["noise"]["total"] if data["noise"] else None
    without = store.run.settings.data.without_texts
    problems = [text[:1].upper() + text[1:] for text in scan_problems(scanned, without_texts=without)]
    if total:
        worst = [(data["classes"][row["label"]], float(row["share"])) for row in data["noise"]["classes"]]
        problems.insert(0, sentences.was_wrong(total, worst[:WORST], multi_label=multi_label))
    else:
        problems.append(missing.get("clean", "There are no verdicts on the labels yet."))
    anchors = dict(Counter(anchor_choice(store.anchors).tolist()))
    done = sentences.was_done(total, anchors, multi_label=multi_label)
    if total and store.run.settings.by_posterior and store.run.finished("posterior"):
        calibrated = store.run.result("posterior")["calibration"] is not None
        done += sentences.scores_are(calibrated=calibrated)
    if data["comparison"] is None:
        gain = missing.get("evaluate", "Nothing was measured on test images.")
    else:
        gain = sentences.brought(data["comparison"], data["classes"])
    return [
        {"name": "What came in", "text": sentences.came_in(scanned)},
        {"name": "What was wrong with it", "text": " ".join(problems)},
        {"name": "What was done", "text": done or missing.get("match", "Nothing yet.")},
        {"name": "What it brought", "text": gain},
    ]
