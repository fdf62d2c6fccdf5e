"""Open-set grids: a run on the known classes, derived from one on all of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capro import assemble, pipeline
from capro.assemble import manifest_of
from capro.baselines.selection import folds
from capro.bench.grids import Row
from capro.data.manifest import Manifest
from capro.data.scan import summarise
from capro.errors import DataError
from capro.evaluate import openset
from capro.pipeline.results import known_labels, scores_of
from capro.runs import Run, atomic_path, read_array, write_array, write_json
from capro.text.classes import load_classes, save_classes

HELD_OUT = 10  # one in ten training samples of each known class chooses the threshold


def known_classes(path: Path, target: Path, known: Sequence[str]) -> Path:
    """A classes.yaml with the known classes alone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    save_classes(target, [spec for spec in load_classes(path) if spec.name in set(known)])
    return target


def derive(run: Run, base: Run, known: Sequence[str], *, seed: int) -> None:
    """Manifest (and cached features) of the known classes, out of a run on all classes.

    Training samples of known classes stay, one in ten becomes the val split, and all test samples
    stay: those of other classes are the open class.
    """
    source = manifest_of(base)
    if source.task != "single":
        raise DataError("open-set recognition needs one label per sample", hint="use another table")

    def scan_work(folder: Path) -> None:
        with atomic_path(folder / "manifest.parquet") as temporary:
            pq.write_table(_known_rows(source, known, seed), temporary)
        write_json(folder / "summary.json", summarise(Manifest.load(folder / "manifest.parquet")))

    decides = {"from": base.need("scan"), "known": list(known), "seed": seed, "val": HELD_OUT}
    run.stage("scan", scan_work, settings=decides)
    if run.settings.net.mode != "frozen":
        return

    def features_work(folder: Path) -> None:
        manifest = manifest_of(run)
        place = {name: number for number, name in enumerate(source.samples["id"])}
        at = np.array([place[name] for name in manifest.samples["id"]], dtype=np.int64)
        rows = np.full(len(source.samples), -1)
        train = source.split("train")
        rows[train] = np.arange(len(train))
        chosen = rows[at[manifest.split("train")]]
        here = base.folder("features")
        write_array(folder / "plain.npy", np.asarray(read_array(here / "plain.npy")[at]))
        for name in ("query", "key"):
            write_array(
                folder / f"{name}.npy", np.asarray(read_array(here / f"{name}.npy")[:, chosen])
            )

    run.stage("features", features_work, settings={"from": base.need("features")}, inputs=["scan"])


def _known_rows(source: Manifest, known: Sequence[str], seed: int) -> pa.Table:
    """Rows of the derived manifest, with its schema and sources."""
    samples = source.samples
    labels = [row[0] if row else "" for row in samples["labels"]]
    wanted = np.array([label in set(known) for label in labels])
    split = samples["split"].to_numpy(dtype=object).copy()
    train = np.flatnonzero((split == "train") & wanted)
    index = {name: number for number, name in enumerate(known)}
    own = np.array([index[labels[row]] for row in train], dtype=np.int64)
    split[train[folds(own, HELD_OUT, seed=seed) == 0]] = "val"
    keep = wanted | (split == "test")
    ok = np.flatnonzero((source.frame["status"] == "ok").to_numpy())
    table = source.table.take(pa.array(ok[keep]))
    place = table.schema.get_field_index("split")
    column = pa.array(split[keep].tolist(), type=table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column)


def open_figures(run: Run, row: Row) -> tuple[dict[str, float], openset.Curve]:
    """C-F1 of a finished row: mean, best, at the held-out threshold; and its curve."""
    manifest = manifest_of(run)
    training = assemble.training_set(run, manifest)
    splits = {name: manifest.split(name) for name in ("test", "val")}
    labels = {name: known_labels(manifest, at, training.classes) for name, at in splits.items()}
    scores = {name: _scores(run, row, name, at, training) for name, at in splits.items()}
    curve = openset.curve(scores["test"], labels["test"])
    chosen = openset.held_out_threshold(scores["val"], labels["val"])
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


def mean_curve(curves: Sequence[openset.Curve]) -> openset.Curve:
    """The mean over seeds at each threshold."""
    return openset.Curve(
        *(np.mean(np.stack(values), axis=0) for values in zip(*curves, strict=True))
    )


def curves_csv(curves: Mapping[str, openset.Curve]) -> str:
    """Row, threshold, C-P, C-R, C-F1: what the figure draws, and more."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "threshold", "C-P", "C-R", "C-F1"])
    for label, curve in curves.items():
        for values in zip(*curve, strict=True):
            writer.writerow([label, *(f"{float(value):.6g}" for value in values)])
    return out.getvalue()


def _scores(
    run: Run, row: Row, split: str, at: NDArray[np.int64], training: Any
) -> NDArray[np.float32]:
    if row.baseline is not None:
        return np.array(read_array(run.folder(f"baselines/{row.baseline}") / f"{split}.npy"))
    if split == "test":
        pipeline.evaluate(run)
        return np.array(read_array(run.folder("evaluate") / "capro.npy"))
    model = run.folder("finetune") / "model.safetensors"
    return scores_of(run, manifest_of(run), training, model, at)
