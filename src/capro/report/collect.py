"""From a run directory to plain data: everything that the page shows, nothing of how it looks.

What is embedded is capped, and the data says how many of how many are shown. Costs: t-SNE, ten
seconds for 3,000 points; a k-NN graph for the matches; a few thousand thumbnails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro import __version__, progress
from capro.graph.smooth import Enhancer, enhance
from capro.match import galleries, text_distances
from capro.report import figures, words
from capro.report.figures import KINDS, Pairs
from capro.report.load import STAGES, Loaded, load
from capro.report.thumbs import LARGE, sprites
from capro.runs import Run, seed_for

PER_GALLERY = 24  # pictures of one kind in one class
GALLERY_BUDGET = 6_000  # pictures in all galleries: 10 to 20 MB at most
LEAST = 6  # pictures per gallery, before classes are left out
TOP = 12  # matches per column
MAP_POINTS = 3_000
FLOW_CLASSES = 18
MATRIX_CLASSES = 40
EXACT_BELOW = 50_000  # the report's own k-NN graph is exact below this
WORST = 3  # noisy classes named in the summary
COLUMNS: tuple[tuple[str, Enhancer], ...] = (
    ("text", "none"),
    ("smoothed", "knn"),
    ("reranked", "reciprocal"),
)


class Shown:
    """Training rows that the page shows, in order of first use."""

    def __init__(self) -> None:
        self.index: dict[int, int] = {}
        self.large: list[bool] = []

    def add(self, rows: Iterable[int], *, large: bool) -> list[int]:
        """Numbers of the rows in the page."""
        found = []
        for row in rows:
            number = self.index.setdefault(int(row), len(self.index))
            if number == len(self.large):
                self.large.append(large)
            self.large[number] |= large
            found.append(number)
        return found


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
    if found.anchors is not None and found.run.settings.train.policy == "capro":
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


# --- galleries ------------------------------------------------------------------------------------


def class_galleries(found: Loaded, verdicts: Pairs, shown: Shown) -> dict[str, Any]:
    """Per class the pictures of each verdict, with evidence; the classes with most change first."""
    classes = len(found.names)
    each = min(PER_GALLERY, max(LEAST, GALLERY_BUDGET // max(1, len(KINDS) * classes)))
    counts = verdicts.counts(classes)
    changed = counts[:, [figures.AWAY, figures.ARRIVED, figures.DROP]].sum(axis=1)
    order = np.lexsort((np.arange(classes), -changed))[: GALLERY_BUDGET // (len(KINDS) * each)]
    scores = pair_scores(found, verdicts)
    by_class = np.argsort(verdicts.label, kind="stable")
    ends = np.searchsorted(verdicts.label[by_class], np.arange(classes + 1))
    found_classes = []
    for c in order.tolist():
        members = by_class[ends[c] : ends[c + 1]]
        parts = {}
        for number, kind in enumerate(KINDS):
            inside = members[verdicts.kind[members] == number]
            chosen = _choose(found, verdicts, inside, number, scores, each)
            parts[kind] = {
                "total": len(inside),
                "items": shown.add(verdicts.row[chosen].tolist(), large=True),
                "scores": [round(float(value), 3) for value in scores[chosen]],
                "evidence": [_evidence(found, verdicts, pair) for pair in chosen.tolist()],
            }
        found_classes.append({"label": c, "parts": parts})
    return {"each": each, "of": classes, "classes": found_classes}


def pair_scores(found: Loaded, verdicts: Pairs) -> NDArray[np.float64]:
    """Fused score of each pair's class; of the new class where a single label moved."""
    if found.fused is None:
        return np.zeros(len(verdicts.row))
    target = verdicts.label
    if not found.multi and found.after is not None:
        now = np.asarray(found.after)[verdicts.row]
        target = np.where(verdicts.kind == figures.AWAY, now, target)
    return np.asarray(found.fused[verdicts.row, target], dtype=np.float64)


def _choose(
    found: Loaded,
    verdicts: Pairs,
    inside: NDArray[np.int64],
    kind: int,
    scores: NDArray[np.float64],
    each: int,
) -> NDArray[np.int64]:
    """Which pairs a gallery shows: the first anchors, the surest moves, a spread of what was kept."""
    if kind == figures.ANCHOR and found.anchors is not None:
        frame = found.anchors
        place = dict(
            zip(zip(frame["row"], frame["class_index"], strict=True), frame["rank"], strict=True)
        )
        ranks = [
            place.get((verdicts.row[pair], verdicts.label[pair]), len(frame)) for pair in inside
        ]
        return inside[np.argsort(ranks, kind="stable")[:each]]
    surest_low = kind == figures.DROP or (found.multi and kind == figures.AWAY)
    order = inside[np.argsort(scores[inside] if surest_low else -scores[inside], kind="stable")]
    if kind == figures.KEEP and len(order) > each:  # from the surest to the most doubtful
        return order[np.linspace(0, len(order) - 1, each).round().astype(np.int64)]
    return order[:each]


def _evidence(found: Loaded, verdicts: Pairs, pair: int) -> str:
    """The sentence that the clean stage wrote, or one of ours."""
    row, label = int(verdicts.row[pair]), int(verdicts.label[pair])
    kind = KINDS[int(verdicts.kind[pair])]
    identity = found.manifest.samples["id"].iloc[int(found.train[row])]
    if identity in found.evidence:
        return words.plain(found.evidence[identity], 400)
    settings = found.run.settings.train
    fused = None if found.fused is None else found.fused[row]
    subject, other, other_score = label, None, None
    if not found.multi and kind in ("away", "arrived") and found.after is not None:
        subject, target = int(found.given[row]), int(found.after[row])
        other, other_score = found.names[target], None if fused is None else float(fused[target])
    anchor = None
    if kind == "anchor" and found.anchors is not None:
        frame = found.anchors
        mine = frame[(frame["row"] == row) & (frame["class_index"] == label)].iloc[0]
        anchor = {
            "rank": int(mine["rank"]),
            "words": [words.plain(word, 30) for word in mine["words"]],
            "neighbors": len(mine["neighbors"]),
        }
    return words.plain(
        words.evidence(
            kind,
            label=found.names[subject] if subject >= 0 else "no label",
            score=None if fused is None or subject < 0 else float(fused[subject]),
            other=other,
            other_score=other_score,
            gamma=settings.gamma,
            chance=1 / max(1, len(found.names)),
            anchor=anchor,
            multi=found.multi,
        ),
        400,
    )


# --- matches and map ------------------------------------------------------------------------------


def top_matches(found: Loaded, shown: Shown, bar: progress.Bar) -> dict[str, Any] | None:
    """Per class the nearest texts: as they are, smoothed over a k-NN graph, re-ranked (the paper's)."""
    if found.texts is None or found.visual is None or found.prototypes is None:
        return None
    settings = found.run.settings.match
    ids = found.manifest.samples["id"].iloc[found.train].tolist()
    members = galleries(found.given, ids, len(found.train), len(found.names))
    sizes = np.array([len(rows) for rows in members])
    order = np.argsort(-sizes, kind="stable")[: GALLERY_BUDGET // (len(COLUMNS) * TOP)]
    order = np.sort(order[sizes[order] > 0])
    exact = min(settings.exact_below, EXACT_BELOW)
    rows: dict[int, dict[str, Any]] = {
        int(c): {"label": int(c), "of": int(sizes[c])} for c in order
    }
    for name, enhancer in COLUMNS:
        with bar(f"matches ({name})", len(order)) as step:
            enhanced = enhance(
                found.visual, found.texts, enhancer=enhancer, k=settings.k,
                exact_below=exact, seed=found.run.settings.seed,
            )  # fmt: skip
            for c in order.tolist():
                distance, _ = text_distances(
                    enhanced.texts[members[c]], found.prototypes[c], k=settings.k, exact_below=exact
                )
                best = np.argsort(np.round(distance, 6), kind="stable")[:TOP]
                rows[c][name] = shown.add(members[c][best].tolist(), large=True)
                rows[c][f"{name}_distance"] = [round(float(d), 3) for d in distance[best]]
                step(1)
    return {"columns": [name for name, _ in COLUMNS], "top": TOP, "classes": list(rows.values())}


def embedding(found: Loaded, shown: Shown, bar: progress.Bar) -> dict[str, Any] | None:
    """A t-SNE map of visual features of a sample of the training set."""
    if found.visual is None:
        return None
    seed = seed_for(found.run.settings.seed, "report")
    total = len(found.train)
    rows = np.arange(total)
    if total > MAP_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(total, MAP_POINTS, replace=False))
    with bar("map of the images (t-SNE)", None):
        points = figures.embedding_map(found.visual[rows], seed)
    return {
        "items": shown.add(rows.tolist(), large=False),
        "x": np.round(points[:, 0], 4).tolist(),
        "y": np.round(points[:, 1], 4).tolist(),
        "of": total,
    }


def samples(found: Loaded, shown: Shown, bar: progress.Bar) -> tuple[dict[str, Any], list[str]]:
    """The samples of the page by column, and the sheets with their pictures."""
    rows = np.array(list(shown.index), dtype=np.int64)
    positions = found.train[rows]
    frame = found.manifest.samples.iloc[positions]
    sizes = np.minimum(frame["width"], frame["height"])
    side = int(np.clip(np.median(sizes), 32, LARGE)) if len(sizes) else LARGE
    with bar("thumbnails", len(positions)) as step:
        drawn = sprites(found.pixels(side), positions.tolist(), shown.large, side=side, step=step)
    bodies = [
        " · ".join(filter(None, (words.plain(a), words.plain(b))))
        for a, b in zip(frame["description"], frame["tags"], strict=True)
    ]
    columns = {
        "id": [words.plain(value, 120) for value in frame["id"]],
        "title": [words.plain(value) for value in frame["title"]],
        "text": bodies,
        "given": [_classes(found.given[row]) for row in rows],
        "after": None if found.after is None else [_classes(found.after[row]) for row in rows],
        "place": [list(place) if place else None for place in drawn.places],
        "tiles": drawn.tiles,
        "unreadable": drawn.unreadable,
    }
    return columns, drawn.sheets


def _classes(labels: Any) -> list[int]:
    """The classes of one sample; none of a dropped one."""
    if np.ndim(labels) == 0:
        return [int(labels)] if labels >= 0 else []
    return [int(c) for c in np.flatnonzero(np.asarray(labels) > 0)]


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
    return {"metrics": metrics, "changes": changes, "tests": len(found.test), "interval": interval}


def measured(found: Loaded) -> dict[str, Any]:
    """Confusion, reliability and threshold curves on the test images."""
    if len(found.scores) < 2 or not len(found.test):
        return {"confusion": None, "reliability": None, "threshold": None}
    scores = found.scores
    threshold = figures.label_threshold if found.multi else figures.open_set
    data: dict[str, Any] = {
        "confusion": None,
        "reliability": {name: figures.reliability(s, found.truth) for name, s in scores.items()},
        "threshold": {name: threshold(s, found.truth) for name, s in scores.items()},
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
