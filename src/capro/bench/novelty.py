"""Open-set grids: a run on the known classes, derived from one on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from capro.bench.baselines.selection import folds
from capro.bench.grids import GridRow
from capro.bench.summary import csv_text
from capro.data.labels import known_labels
from capro.data.manifest import Manifest, manifest_of
from capro.data.summary import summarise
from capro.errors import DataError
from capro.evaluate import open_set
from capro.evaluate.scoring import scores_of
from capro.run.artefacts import (
    KEY_FEATURES,
    MANIFEST,
    MODELS,
    PLAIN_FEATURES,
    QUERY_FEATURES,
    SCORES,
    SUMMARY,
    TEST_SCORES,
    VAL_SCORES,
    atomic_path,
)
from capro.run.directory import Run
from capro.run.stage import Job, Plan
from capro.stages import PLAN
from capro.text.classes import load_classes, save_classes
from capro.train.setup import training_set

VAL_SHARE = 10  # one in ten training samples of each known class chooses the threshold


def known_classes(path: Path, target: Path, known: Sequence[str]) -> Path:
    """A classes.yaml with the known classes alone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    save_classes(target, [spec for spec in load_classes(path) if spec.name in set(known)])
    return target


def derived_plan(base: Run, known: Sequence[str], *, seed: int) -> Plan:
    """The plan with manifest (and cached features) of the known classes, out of a run on all classes.

    Training samples of known classes stay, one in ten becomes the val split, and all test samples
    stay: those of other classes are the open class.
    """
    source = manifest_of(base)
    if source.task != "single":
        raise DataError("open-set recognition needs one label per sample", hint="use another table")

    def scan(job: Job) -> None:
        with atomic_path(job.file(MANIFEST)) as temporary:
            pq.write_table(_known_rows(source, known, seed), temporary)
        job.write(SUMMARY, summarise(Manifest.load(job.file(MANIFEST))))

    def features(job: Job) -> None:
        manifest = manifest_of(job.run)
        place = {name: number for number, name in enumerate(source.samples["id"])}
        at = np.array([place[name] for name in manifest.samples["id"]], dtype=np.int64)
        rows = np.full(len(source.samples), -1)
        train = source.split("train")
        rows[train] = np.arange(len(train))
        chosen = rows[at[manifest.split("train")]]
        job.write(PLAIN_FEATURES, np.asarray(base.read(PLAIN_FEATURES)[at]))
        for artefact in (QUERY_FEATURES, KEY_FEATURES):
            job.write(artefact, np.asarray(base.read(artefact)[:, chosen]))

    decides = {"from": base.need("scan"), "known": list(known), "seed": seed, "val": VAL_SHARE}
    return PLAN.replacing(
        replace(PLAN["scan"], work=scan, settings=lambda _: decides, implicit=True),
        replace(PLAN["features"], work=features, settings=lambda _: {"from": base.need("features")}, uses=()),
    )


def _known_rows(source: Manifest, known: Sequence[str], seed: int) -> pa.Table:
    """Rows of the derived manifest, with its schema and sources."""
    samples = source.samples
    labels = [row[0] if row else "" for row in samples["labels"]]
    wanted = np.array([label in set(known) for label in labels])
    split = samples["split"].to_numpy(dtype=object).copy()
    train = np.flatnonzero((split == "train") & wanted)
    index = {name: number for number, name in enumerate(known)}
    own = np.array([index[labels[row]] for row in train], dtype=np.int64)
    split[train[folds(own, VAL_SHARE, seed=seed) == 0]] = "val"
    keep = wanted | (split == "test")
    ok = np.flatnonzero((source.frame["status"] == "ok").to_numpy())
    table = source.table.take(pa.array(ok[keep]))
    place = table.schema.get_field_index("split")
    column = pa.array(split[keep].tolist(), type=table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column)


def open_figures(run: Run, row: GridRow) -> tuple[dict[str, float], open_set.Curve]:
    """C-F1 of a finished row: mean, best, at the held-out threshold; and its curve."""
    manifest, training = manifest_of(run), training_set(run)
    splits = {name: manifest.split(name) for name in ("test", "val")}
    labels = {name: known_labels(manifest, at, training.classes) for name, at in splits.items()}
    if row.baseline is not None:
        stored = {"test": TEST_SCORES, "val": VAL_SCORES}
        of = f"baselines/{row.baseline}"
        scores = {name: np.array(run.read(kept.of(of))) for name, kept in stored.items()}
    else:
        scores = {
            "test": np.array(run.read(SCORES["capro"])),
            "val": scores_of(run, training, MODELS["capro"], splits["val"]),
        }
    curve = open_set.curve(scores["test"], labels["test"])
    chosen = open_set.held_out_threshold(scores["val"], labels["val"])
    held = curve.at(chosen)
    figures = {
        "C-F1 mean": curve.mean,
        "C-F1 best": curve.best.f1,
        "C-F1 held-out": held.f1,
        "C-P held-out": held.precision,
        "C-R held-out": held.recall,
        "threshold best": curve.best.threshold,
        "threshold held-out": chosen,
    }
    return figures, curve


def mean_curve(curves: Sequence[open_set.Curve]) -> open_set.Curve:
    """The mean over seeds at each threshold."""
    return open_set.Curve(*(np.mean(np.stack(values), axis=0) for values in zip(*curves, strict=True)))


def curves_csv(curves: Mapping[str, open_set.Curve]) -> str:
    """Row, threshold, C-P, C-R, C-F1: what the figure draws, and more."""
    rows = [
        [label, *(f"{float(value):.6g}" for value in values)]
        for label, curve in curves.items()
        for values in zip(*curve, strict=True)
    ]
    return csv_text(["row", "threshold", "C-P", "C-R", "C-F1"], rows)
