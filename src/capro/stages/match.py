"""Choose the anchors of each class by their enhanced texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capro.config import MatchSettings
from capro.core.anchors import Anchors, match
from capro.data.manifest import manifest_of
from capro.data.pixels import pixels_of
from capro.graph.smooth import enhance
from capro.models.text_cleaning import training_texts
from capro.models.text_encoders import load_text_encoder
from capro.pipeline.artefacts import (
    ADJACENCY,
    ANCHOR_SHEET,
    ANCHORS,
    CLASS_TEXTS,
    DISTANCES,
    ENHANCED_TEXTS,
    TEXTS,
    VISUAL,
    atomic_path,
)
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.report.thumbnails import contact_sheet
from capro.results.neighbourhood import lenders_of
from capro.results.truth import load_truth, membership, purity
from capro.review.decisions import DecisionArrays
from capro.stages.decided import decided_of
from capro.train.setup import TrainingSet, training_set
from capro.wording import many, some

SHOWN = 5  # words named as evidence


def _match(run: Run, training: TrainingSet, texts: NDArray[Any], settings: MatchSettings) -> Anchors:
    labels = training.labels.numpy()
    person = decided_of(run, training)
    if person is not None:  # a dropped sample is no anchor; a relabelled one may be one of its new class
        labels = np.maximum(person.labels(labels), -1 if labels.ndim == 1 else 0)
    return match(
        texts,
        run.read(CLASS_TEXTS),
        labels,
        ids=training.row_ids,
        pictures=run.read(VISUAL),
        mode=settings.anchors,
        seed=run.settings.seed,
        contrast=0.0 if training.multi_label else settings.contrast,
        **settings.model_dump(
            include={"k", "top_k", "top_share", "random_share", "own_neighbour", "exact_below"}
        ),
    )


def work(job: Job) -> dict[str, Any]:
    training = training_set(job.run)
    with job.bar("matching texts", None):
        anchors = _match(job.run, training, job.read(ENHANCED_TEXTS), job.settings.match)
    ids = np.array(training.row_ids, dtype=object)
    classes = np.array(training.classes, dtype=object)
    gallery = anchors.gallery
    distances = {
        "id": ids[gallery.sample],
        "class": classes[gallery.label],
        "distance": gallery.distance,
        "cosine_distance": gallery.cosine,
    }
    job.write(DISTANCES, pd.DataFrame(distances))
    chosen = {
        "class": classes[anchors.label],
        "rank": anchors.rank,
        "id": ids[anchors.sample],
        "row": anchors.sample,
        "class_index": anchors.label,
        "distance": anchors.distance,
        "cosine_distance": anchors.cosine,
        "random": anchors.random,
        "chosen_by": anchors.by,
    }
    table = _with_picked(pd.DataFrame(chosen), anchors, decided_of(job.run, training), ids, classes)
    table["words"], table["neighbors"] = _evidence(job.run, table, ids)
    job.write(ANCHORS, table)
    counts = np.bincount(anchors.label, minlength=len(classes))
    size = np.bincount(gallery.label, minlength=len(classes))
    short = (counts > 0) & (size < job.settings.match.top_k)
    return {
        "anchors": len(table),
        "chosen_by": {str(name): int(n) for name, n in table["chosen_by"].value_counts().items()},
        "recall": job.run.result("graph")["recall"],
        "classes_below_k": classes[short].tolist(),
        "classes_without_anchor": sorted(classes[counts == 0].tolist()),
    }


def _with_picked(
    table: pd.DataFrame,
    anchors: Anchors,
    person: DecisionArrays | None,
    ids: NDArray[np.object_],
    classes: NDArray[np.object_],
) -> pd.DataFrame:
    """Anchors with those that a person picked, after the others of their class; they do not count as random."""
    if person is None or not person.anchors.any():
        return table
    gallery = anchors.gallery
    picked = np.flatnonzero(person.anchors[gallery.sample])
    known = person.known(gallery.sample[picked])
    picked = picked[known[np.arange(len(picked)), gallery.label[picked]] > 0.5]
    sample, label = gallery.sample[picked], gallery.label[picked]
    rows = pd.DataFrame(
        {
            "class": classes[label],
            "id": ids[sample],
            "row": sample,
            "class_index": label,
            "distance": gallery.distance[picked],
            "cosine_distance": gallery.cosine[picked],
            "random": False,
            "chosen_by": "person",
        }
    )
    pair = ["row", "class_index"]
    rows = rows[~pd.MultiIndex.from_frame(rows[pair]).isin(pd.MultiIndex.from_frame(table[pair]))]
    if rows.empty:
        return table
    others = rows["class_index"].map(table["class_index"].value_counts()).fillna(0)
    rows = rows.assign(rank=others + rows.groupby("class_index").cumcount())
    both = pd.concat([table, rows.astype(table.dtypes.to_dict())])
    return both.sort_values(["class_index", "rank"], ignore_index=True)


def _evidence(
    run: Run, anchors: pd.DataFrame, ids: NDArray[np.object_]
) -> tuple[list[list[str]], list[list[str]]]:
    """For each anchor the words nearest to its class's text, and the neighbours whose texts were added."""
    texts, graph = training_texts(manifest_of(run)), run.find(ADJACENCY)
    has_text = np.array([bool(text) for text in texts])
    lenders = [
        [] if graph is None else lenders_of(graph, row, has_text).tolist() for row in anchors["row"].tolist()
    ]
    words = [
        list(dict.fromkeys(" ".join([texts[row], *(texts[n] for n in others)]).split()))
        for row, others in zip(anchors["row"], lenders, strict=True)
    ]
    vocabulary = sorted({word for of_anchor in words for word in of_anchor})
    settings = run.settings.embed
    encoder = load_text_encoder(settings.text_encoder, max_tokens=settings.max_tokens)
    vectors = encoder.encode(vocabulary) if vocabulary else np.zeros((0, encoder.dim), np.float32)
    scores = vectors @ np.asarray(run.read(CLASS_TEXTS)).T
    row_of = {word: number for number, word in enumerate(vocabulary)}
    best = [
        sorted(of_anchor, key=lambda word, c=label: -scores[row_of[word], c])[:SHOWN]  # type: ignore[misc]
        for of_anchor, label in zip(words, anchors["class_index"], strict=True)
    ]
    return best, [ids[others].tolist() for others in lenders]


def check(run: Run) -> list[str]:
    """Classes with few anchors or none."""
    figures = run.result("match")
    texts = {
        "classes_below_k": "with fewer than match.top_k samples",
        "classes_without_anchor": "without any sample, and so without anchors",
    }
    return [
        f"{many(len(figures[key]), 'class', 'classes')} {text}: {some(figures[key])}"
        for key, text in texts.items()
        if figures[key]
    ]


# --- looking at anchors ---------------------------------------------------------------------------


def purity_by_enhancer(
    run: Run, truth: Path, *, enhancers: Sequence[str] = ("random", "none", "knn", "reciprocal")
) -> dict[str, NDArray[np.float64]]:
    """Anchor purity of each class by enhancer, measured on ground truth; trains and writes nothing."""
    settings = run.settings.match
    training = training_set(run)
    member = membership(load_truth(truth, manifest_of(run)), training.classes)
    texts, purities = run.read(TEXTS), {}
    for name in enhancers:
        enhanced = texts
        if name in ("knn", "reciprocal"):
            enhanced = enhance(
                run.read(VISUAL), texts, enhancer=name, k=settings.k,  # type: ignore[arg-type]
                own_neighbour=settings.own_neighbour, exact_below=settings.exact_below,
                seed=run.settings.seed,
            ).texts  # fmt: skip
        mode = "random" if name == "random" else "text"
        chosen = settings.model_copy(update={"anchors": mode, "random_share": 0.0})
        anchors = _match(run, training, enhanced, chosen)
        purities[name] = purity(anchors.sample, anchors.label, member)
    return purities


def anchor_sheet(run: Run, *, columns: int = 12) -> Path:
    """A picture of each class's first anchors, in the stage's folder."""
    frame, train = run.read(ANCHORS), manifest_of(run).split("train")
    images = pixels_of(run, 64)
    rows = {
        str(name): [images.image(int(train[row])) for row in part.sort_values("rank")["row"][:columns]]
        for name, part in frame.groupby("class")
    }
    path = run.folder("match") / ANCHOR_SHEET
    with run.updating_file(path), atomic_path(path) as temporary:
        contact_sheet(rows).save(temporary)
    return path
