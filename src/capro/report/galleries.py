"""What the page shows of images: galleries by class, top matches, the map, and their thumbnails.

What is embedded is capped, and the data says how many of how many are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.core.anchors import galleries, text_distances
from capro.data.pixels import pixels_of
from capro.graph.smooth import Enhancer, enhance
from capro.pipeline.artefacts import CLASS_TEXTS, ENHANCED_TEXTS, TEXTS
from capro.pipeline.checksums import seed_for
from capro.pipeline.progress import Watch
from capro.report.thumbnails import LARGE, embedding_map, sprites
from capro.results import label_changes
from capro.results.label_changes import KINDS
from capro.results.store import VerdictStore
from capro.wording import plain

PER_GALLERY = 24  # pictures of one kind in one class
GALLERY_BUDGET = 6_000  # pictures in all galleries: 10 to 20 MB at most
LEAST = 6  # pictures per gallery, before classes are left out
TOP = 12  # matches per column
MAP_POINTS = 3_000
GRAPH_LIMIT = 100_000  # samples up to which the report builds graphs that the run did not keep
COLUMNS: dict[str, Enhancer] = {"text": "none", "smoothed": "knn", "reranked": "reciprocal"}


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


# --- galleries ------------------------------------------------------------------------------------


def class_galleries(store: VerdictStore, shown: Shown) -> dict[str, Any]:
    """Per class the pictures of each verdict, with evidence; the classes with most change first."""
    changes, classes = store.changes, len(store.names)
    each = min(PER_GALLERY, max(LEAST, GALLERY_BUDGET // max(1, len(KINDS) * classes)))
    counts = changes.counts(classes)
    changed = counts[:, [label_changes.AWAY, label_changes.ARRIVED, label_changes.DROP]].sum(axis=1)
    order = np.lexsort((np.arange(classes), -changed))[: GALLERY_BUDGET // (len(KINDS) * each)]
    scores = pair_scores(store)
    ranks = store.anchors.set_index(["row", "class_index"])["rank"].to_dict()
    by_class = np.argsort(changes.label, kind="stable")
    ends = np.searchsorted(changes.label[by_class], np.arange(classes + 1))
    made = []
    for c in order.tolist():
        members = by_class[ends[c] : ends[c + 1]]
        parts = {}
        for number, kind in enumerate(KINDS):
            inside = members[changes.kind[members] == number]
            if number == label_changes.ANCHOR:
                anchor_ranks = [ranks[int(row), c] for row in changes.row[inside]]
                chosen = inside[np.argsort(anchor_ranks, kind="stable")[:each]]
            else:
                low = number == label_changes.DROP or (store.multi_label and number == label_changes.AWAY)
                chosen = choose(inside, scores[inside], number, each, lowest=low)
            parts[kind] = {
                **cards(store, shown, changes.row[chosen], len(inside)),
                "scores": [round(float(value), 3) for value in scores[chosen]],
            }
        made.append({"label": c, "parts": parts})
    return {"each": each, "of": classes, "classes": made}


def cards(store: VerdictStore, shown: Shown, rows: NDArray[np.int64], total: int) -> dict[str, Any]:
    """Some of a total of rows, with the evidence for their verdicts."""
    return {
        "total": total,
        "items": shown.add(rows.tolist(), large=True),
        "evidence": [plain(store.evidence(int(row)), 400) for row in rows],
    }


def pair_scores(store: VerdictStore) -> NDArray[np.float64]:
    """Fused score of the class of each changed pair; of the new class where a single label moved."""
    changes, target = store.changes, store.changes.label
    if not store.multi_label:
        target = np.where(changes.kind == label_changes.AWAY, store.corrected[changes.row], target)
    return np.asarray(store.scores[changes.row, target], dtype=np.float64)


def choose(
    pairs: NDArray[np.int64], scores: NDArray[np.float64], kind: int, each: int, *, lowest: bool
) -> NDArray[np.int64]:
    """Which pairs a gallery shows: the surest moves, and a spread of what was kept.

    >>> pairs, scores = np.arange(5), np.array([0.1, 0.5, 0.3, 0.2, 0.4])
    >>> choose(pairs, scores, label_changes.AWAY, 2, lowest=False).tolist()
    [1, 4]
    >>> choose(pairs, scores, label_changes.KEEP, 3, lowest=False).tolist()
    [1, 2, 0]
    """
    order = pairs[np.argsort(scores if lowest else -scores, kind="stable")]
    return spread(order, each) if kind == label_changes.KEEP else order[:each]


def spread(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most this many, evenly from the first to the last.

    >>> spread(np.arange(5), 3).tolist()
    [0, 2, 4]
    """
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def dropped(store: VerdictStore, shown: Shown) -> dict[str, Any] | None:
    """What each value of `plus.drop_above` drops, with pictures; None where the method has no such value."""
    levels = [
        {
            "value": level.value,
            "dropped": level.dropped,
            **cards(store, shown, spread(level.rows, PER_GALLERY), len(level.rows)),
        }
        for level in store.drop_levels
    ]
    now = store.run.settings.plus.drop_above
    return {"now": now, "of": len(store), "levels": levels} if levels else None


# --- matches and map ------------------------------------------------------------------------------


def top_matches(store: VerdictStore, shown: Shown, watch: Watch) -> dict[str, Any] | None:
    """Per class the nearest texts: as they are, smoothed over a k-NN graph, re-ranked (the paper's)."""
    class_texts = store.run.find(CLASS_TEXTS)
    if store.array(TEXTS) is None or store.visual is None or class_texts is None:
        return None
    options = store.run.settings.match.model_dump(include={"k", "own_neighbour", "exact_below"})  # as `match`
    members = galleries(store.given, store.ids.to_pylist(), len(store), len(store.names))
    sizes = np.array([len(rows) for rows in members])
    order = np.argsort(-sizes, kind="stable")[: GALLERY_BUDGET // (len(COLUMNS) * TOP)]
    order = np.sort(order[sizes[order] > 0])
    rows: dict[int, dict[str, Any]] = {int(c): {"label": int(c), "of": int(sizes[c])} for c in order}
    protected = store.protected_anchors
    columns = []
    for name, enhancer in COLUMNS.items():
        with watch.bar(f"matches ({name})", len(order)) as step:
            texts = _texts(store, enhancer)
            if texts is None:
                continue
            columns.append(name)
            for c in order.tolist():
                with_text = members[c][np.asarray(texts[members[c]]).any(axis=1)]
                distance, _ = text_distances(np.asarray(texts[with_text]), class_texts[c], **options)
                best = np.argsort(np.round(distance, 6), kind="stable")[:TOP]
                nearest = with_text[best]
                rows[c][name] = shown.add(nearest.tolist(), large=True)
                rows[c][f"{name}_anchor"] = (
                    protected[nearest, c] if store.multi_label else protected[nearest]
                ).tolist()
                rows[c][f"{name}_distance"] = [round(float(d), 3) for d in distance[best]]
                step(1)
    return {
        "columns": columns,
        "left_out": [name for name in COLUMNS if name not in columns],
        "limit": GRAPH_LIMIT,
        "top": TOP,
        "classes": [row for row in rows.values() if any(row[name] for name in columns)],
    }


def _texts(store: VerdictStore, enhancer: Enhancer) -> NDArray[np.float32] | None:
    """Texts under an enhancer: those of the run, or computed where that is quick; else None."""
    settings, texts, enhanced = store.run.settings, store.array(TEXTS), store.array(ENHANCED_TEXTS)
    if enhanced is not None and enhancer == settings.match.enhancer:
        return enhanced
    if enhancer == "none":
        return texts  # unit rows already: no copy of all of them
    if texts is None or store.visual is None or len(texts) > GRAPH_LIMIT:
        return None
    options = settings.match.model_dump(include={"k", "own_neighbour"})
    return enhance(store.visual, texts, enhancer=enhancer, seed=settings.seed, **options).texts


def embedding(store: VerdictStore, shown: Shown, watch: Watch) -> dict[str, Any] | None:
    """A t-SNE map of visual features of a sample of the training set."""
    if store.visual is None:
        return None
    seed = seed_for(store.run.settings.seed, "report")
    total = len(store)
    rows = np.arange(total)
    if total > MAP_POINTS:
        rows = np.sort(np.random.default_rng(seed).choice(total, MAP_POINTS, replace=False))
    with watch.bar("map of the images (t-SNE)", None):
        points = embedding_map(store.visual[rows], seed)
    return {
        "items": shown.add(rows.tolist(), large=False),
        "x": np.round(points[:, 0], 4).tolist(),
        "y": np.round(points[:, 1], 4).tolist(),
        "of": total,
    }


# --- samples --------------------------------------------------------------------------------------


def samples(store: VerdictStore, shown: Shown, watch: Watch) -> tuple[dict[str, Any], list[str]]:
    """The samples of the page by column, and the sheets with their pictures."""
    rows = np.array(list(shown.index), dtype=np.int64)
    positions, classes = store.positions[rows], range(len(store.names))
    fields = ("id", "title", "description", "tags", "width", "height")
    frame = store.manifest_columns(*fields).take(rows).to_pandas()
    sizes = np.minimum(frame["width"], frame["height"])
    side = int(np.clip(np.median(sizes), 32, LARGE)) if len(sizes) else LARGE
    with watch.bar("thumbnails", len(positions)) as step:
        drawn = sprites(pixels_of(store.run, side), positions.tolist(), shown.large, side=side, step=step)
    bodies = [
        " · ".join(filter(None, (plain(a), plain(b))))
        for a, b in zip(frame["description"], frame["tags"], strict=True)
    ]
    columns = {
        "id": [plain(value, 120) for value in frame["id"]],
        "title": [plain(value) for value in frame["title"]],
        "text": bodies,
        "given": [store.kind.decode(store.given[row], classes) for row in rows],
        "after": [store.kind.decode(store.corrected[row], classes) for row in rows]
        if store.has_verdicts
        else None,
        "place": drawn.places,
        "tiles": drawn.tiles,
        "unreadable": drawn.places.count(None),
    }
    return columns, drawn.sheets
