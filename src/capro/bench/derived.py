"""A run on some rows of a data set, or with other labels: its manifest is derived from a run on all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capro.data.manifest import Manifest, manifest_of
from capro.data.summary import summarise
from capro.pipeline.artefacts import (
    KEY_FEATURES,
    MANIFEST,
    PLAIN_FEATURES,
    QUERY_FEATURES,
    SUMMARY,
    atomic_path,
)
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.stages import PLAN


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
    chosen = np.flatnonzero(keep).tolist()
    ok = np.flatnonzero((source.frame["status"] == "ok").to_numpy())
    table = source.table.take(pa.array(ok[chosen]))
    changed: dict[str, list[Any]] = {}
    if split is not None:
        changed["split"] = [str(split[row]) for row in chosen]
    if labels is not None and source.task == "single":
        changed["label"] = [labels[row][0] for row in chosen]
    elif labels is not None:
        changed["labels"] = [list(labels[row]) for row in chosen]
    for name, values in changed.items():
        place = table.schema.get_field_index(name)
        column = table.schema.field(place)
        table = table.set_column(place, column, pa.array(values, type=column.type))
    return table


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

    return PLAN.replacing(replace(PLAN["scan"], work=scan, settings=lambda _: decides, implicit=True))


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
        place = {name: number for number, name in enumerate(source.samples["id"])}
        at = np.array([place[name] for name in manifest.samples["id"]], dtype=np.int64)
        row_of = np.full(len(source.samples), -1)
        train = source.split("train")
        row_of[train] = np.arange(len(train))
        chosen = row_of[at[manifest.split("train")]]
        job.write(PLAIN_FEATURES, np.asarray(base.read(PLAIN_FEATURES)[at]))
        for artefact in (QUERY_FEATURES, KEY_FEATURES):
            job.write(artefact, np.asarray(base.read(artefact)[:, chosen]))

    return plan_of_rows(rows, decides).replacing(
        replace(PLAN["features"], work=features, settings=lambda _: {"from": base.need("features")}, uses=())
    )
