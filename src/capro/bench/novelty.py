"""Open-set grids: a run on the known classes, derived from one on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from capro.bench.baselines.selection import folds
from capro.bench.by_test_set import rows_by_test_set
from capro.bench.derived import derived_plan, derived_rows
from capro.bench.grids import GridRow
from capro.bench.summary import csv_text
from capro.data.labels import known_labels
from capro.data.manifest import Manifest, manifest_of
from capro.errors import DataError
from capro.models.classes import classes_of, load_classes, save_classes, wordnet_ids
from capro.pipeline.artefacts import MODELS, SCORES, TEST_SCORES, VAL_SCORES, write_text
from capro.pipeline.plan import Plan
from capro.pipeline.progress import Watch
from capro.pipeline.run import Run
from capro.results import open_set
from capro.results.scoring import scores_of
from capro.stages import PLAN
from capro.train.setup import training_set

Curves = dict[str, open_set.Curve]  # by what stands behind a metric's name (by_test_set.py), or by row
VAL_SHARE = 10  # one in ten training samples of each known class chooses the threshold


class NotForThisData(DataError):
    """A table that has no form for a data set; `capro bench all` leaves it out."""


def known_names(base: Run, listed: Path | None, folder: Path, *, seed: int, watch: Watch) -> list[str]:
    """Known classes of a run on all classes; they and the novel ones are written down in ``folder/openset``.

    Args:
        base: A run that was scanned.
        listed: Class list of the novel classes; half of them by the seed if unset.
        folder: Of the bench.
        seed: Of the draw.
        watch: Where progress is shown.
    """
    names = manifest_of(base).label_names("train")
    if listed is not None:
        PLAN.do(base, "classes", watch=watch)  # for their WordNet ids
        novel = open_set.read_class_list(listed, names, wordnet_ids(classes_of(base)))
        known = [name for name in names if name not in novel]
        if len(known) < 2:
            raise DataError(f"{listed}: leaves {len(known)} known classes", hint="leave 2 or more")
    else:
        try:
            known, novel = open_set.split_classes(names, seed=seed)
        except DataError as error:
            raise NotForThisData(str(error), hint=error.hint) from None
    for word, found in (("known", known), ("novel", novel)):
        write_text(folder / "openset" / f"{word}.txt", "\n".join(found) + "\n")
    return known


def known_classes(path: Path, target: Path, known: Sequence[str]) -> Path:
    """A classes.yaml with the known classes alone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    save_classes(target, [spec for spec in load_classes(path) if spec.name in set(known)])
    return target


def known_plan(base: Run, known: Sequence[str], *, seed: int) -> Plan:
    """The plan on the known classes, out of a run on all classes.

    Training samples of known classes stay, one in ten becomes the val split, and all test samples
    stay: those of other classes are the open class.
    """
    source = manifest_of(base)
    if source.task != "single":
        raise NotForThisData("open-set recognition needs one label per sample", hint="use another table")
    decides = {"from": base.need("scan"), "known": list(known), "seed": seed, "val": VAL_SHARE}
    return derived_plan(base, _known_rows(source, known, seed), decides)


def _known_rows(source: Manifest, known: Sequence[str], seed: int) -> pa.Table:
    """Rows of the derived manifest."""
    samples = source.samples
    labels = [row[0] if row else "" for row in samples["labels"]]
    wanted = np.array([label in set(known) for label in labels])
    split = samples["split"].to_numpy(dtype=object).copy()
    train = np.flatnonzero((split == "train") & wanted)
    index = {name: number for number, name in enumerate(known)}
    own = np.array([index[labels[row]] for row in train], dtype=np.int64)
    split[train[folds(own, VAL_SHARE, seed=seed) == 0]] = "val"
    return derived_rows(source, wanted | (split == "test"), split=split.tolist())


def open_figures(run: Run, row: GridRow) -> tuple[dict[str, float], Curves]:
    """C-F1 of a finished row on each test set: mean, best, at the held-out threshold; and the curves."""
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
    chosen = open_set.held_out_threshold(scores["val"], labels["val"])
    figures: dict[str, float] = {}
    curves: Curves = {}
    for name, rows in rows_by_test_set(run).items():
        curve = curves[name] = open_set.curve(scores["test"][rows], labels["test"][rows])
        held = curve.at(chosen)
        own = {
            "C-F1 mean": curve.mean,
            "C-F1 best": curve.best.f1,
            "C-F1 held-out": held.f1,
            "C-P held-out": held.precision,
            "C-R held-out": held.recall,
            "threshold best": curve.best.threshold,
        }
        figures |= {f"{metric}{name}": value for metric, value in own.items()}
    return figures | {"threshold held-out": chosen}, curves


def mean_curves(curves: Mapping[str, Sequence[Curves]]) -> dict[str, Curves]:
    """The mean over seeds at each threshold, by test set and then by row; curves are given by row and seed."""
    found: dict[str, Curves] = {}
    for label, of_seeds in curves.items():
        for name in of_seeds[0] if of_seeds else ():
            parts = zip(*(each[name] for each in of_seeds), strict=True)
            found.setdefault(name, {})[label] = open_set.Curve(
                *(np.mean(np.stack(values), axis=0) for values in parts)
            )
    return found


def points(curve: open_set.Curve) -> list[tuple[float, float]]:
    """Threshold and C-F1 of a curve."""
    return [*zip(curve.thresholds.tolist(), curve.f1.tolist(), strict=True)]


def curves_csv(means: Mapping[str, Curves]) -> str:
    """Row (and test set), threshold, C-P, C-R, C-F1: what the figures draw, and more."""
    rows = [
        [f"{label}{name}", *(f"{float(value):.6g}" for value in values)]
        for name, curves in means.items()
        for label, curve in curves.items()
        for values in zip(*curve, strict=True)
    ]
    return csv_text(["row", "threshold", "C-P", "C-R", "C-F1"], rows)
