"""Runs on some rows, classes or labels of a dataset: their manifest is derived from that of a run on all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capro.bench.baselines.work import folds
from capro.data.labels import SINGLE_LABEL
from capro.data.manifest import Manifest, manifest_of
from capro.data.summary import summarise
from capro.errors import DataError
from capro.models.classes import classes_of, wordnet_ids
from capro.pipeline.artefacts import (
    KEY_FEATURES,
    MANIFEST,
    PLAIN_FEATURES,
    QUERY_FEATURES,
    SUMMARY,
    atomic_path,
    write_text,
)
from capro.pipeline.plan import Plan
from capro.pipeline.progress import Watch
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.results import open_set
from capro.stages import PLAN

VAL_SHARE = 10  # one in ten training samples of each known class chooses the threshold


def derived_rows(
    source: Manifest,
    keep: NDArray[np.bool_],
    *,
    split: Sequence[str] | None = None,
    labels: Sequence[tuple[str, ...]] | None = None,
) -> pa.Table:
    """Rows of a derived manifest, with the schema and the image sources of the given one.

    Args:
        source: The manifest of all samples.
        keep: Which samples stay, (n,).
        split: Another split of each of the n samples.
        labels: Other label names of each of the n samples.
    """
    table = source.table.filter(pc.equal(source.table["status"], "ok"))
    changed: dict[str, Sequence[Any]] = {}
    if split is not None:
        changed["split"] = split
    if labels is not None and source.multi_label:
        changed["labels"] = labels
    elif labels is not None:
        changed["label"] = [next(iter(names), None) for names in labels]
    for name, values in changed.items():
        number = table.schema.get_field_index(name)
        column = table.schema.field(number)
        table = table.set_column(number, column, pa.array(values, type=column.type))
    return table.filter(pa.array(keep))


def plan_of_rows(rows: pa.Table, decides: Mapping[str, Any]) -> Plan:
    """The plan with these rows as the manifest.

    Args:
        rows: Of the derived manifest.
        decides: What the rows depend on, for the fingerprint.
    """

    def scan(job: Job) -> None:
        with atomic_path(job.file(MANIFEST)) as temporary:
            pq.write_table(rows, temporary)
        job.write(SUMMARY, summarise(Manifest.load(job.file(MANIFEST))))

    return PLAN.replacing(replace(PLAN["scan"], work=scan, settings=lambda _: decides, sources=None))


def derived_plan(base: Run, rows: pa.Table, decides: Mapping[str, Any]) -> Plan:
    """The plan with these rows as the manifest; cached features are taken from the run on all rows.

    Args:
        base: A run on all rows that was scanned, and in frozen mode has its features.
        rows: Of the derived manifest; its training rows are training rows of the base.
        decides: What the rows depend on, for the fingerprint.
    """
    source = manifest_of(base)

    def features(job: Job) -> None:
        manifest = manifest_of(job.run)
        at = pd.Index(source.samples["id"]).get_indexer(manifest.samples["id"])
        chosen = pd.Index(source.split("train")).get_indexer(at[manifest.split("train")])
        job.write(PLAIN_FEATURES, np.asarray(base.read(PLAIN_FEATURES)[at]))
        for artefact in (QUERY_FEATURES, KEY_FEATURES):
            job.write(artefact, np.asarray(base.read(artefact)[:, chosen]))

    return plan_of_rows(rows, decides).replacing(
        replace(
            PLAN["features"], work=features, settings=lambda _: {"from": base.identity("features")}, uses=()
        )
    )


# --- known and novel classes ----------------------------------------------------------------------


class NotForThisData(DataError):
    """A table that has no form for a dataset; `capro bench all` leaves it out."""


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
    for word, classes in (("known", known), ("novel", novel)):
        write_text(folder / "openset" / f"{word}.txt", "\n".join(classes) + "\n")
    return known


def known_plan(base: Run, known: Sequence[str], *, seed: int) -> Plan:
    """The plan on the known classes, out of a run on all classes.

    Training samples of known classes stay, one in ten becomes the val split, and all test samples
    stay: those of other classes are the open class.
    """
    source = manifest_of(base)
    if source.multi_label:
        raise NotForThisData("open-set recognition needs one label per sample", hint="use another table")
    labels = SINGLE_LABEL.encode(source.samples["labels"].tolist(), known)
    split = source.samples["split"].to_numpy(dtype=object).copy()
    train = np.flatnonzero((split == "train") & (labels >= 0))
    split[train[folds(labels[train], VAL_SHARE, seed=seed) == 0]] = "val"
    rows = derived_rows(source, (labels >= 0) | (split == "test"), split=split.tolist())
    decides = {"from": base.identity("scan"), "known": list(known), "seed": seed, "val": VAL_SHARE}
    return derived_plan(base, rows, decides)
