"""What a run directory holds for the report: checked, with a plain sentence for what is missing.

A stage that has not finished, or whose arrays belong to another scan, is absent here. Nothing is
computed; arrays stay memory maps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capro.core.kept_scores import KeptScores
from capro.data.labels import Labels, labels_of
from capro.data.manifest import Manifest, manifest_of
from capro.errors import RunError
from capro.models.classes import ClassSpec, class_text, classes_of, has_meaning
from capro.pipeline.artefacts import (
    ANCHORS,
    CLASS_TEXTS,
    CLEANED_LABELS,
    ENHANCED_TEXTS,
    FUSED_SCORES,
    HISTORIES,
    MODELS,
    SAMPLE_VERDICTS,
    SUMMARY,
    TEXTS,
    VERDICTS,
    VISUAL,
    Artefact,
)
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.results.comparison import Evaluated, test_split

Matrix = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """A run as the report sees it; None is what is not there, and ``missing`` says why.

    Attributes:
        stages: what the finished stages left in stage.json, by name; None for the others.
        classes: as they were resolved, (C,); their bare names before that.
        train: manifest positions of the training rows, (n,).
        given: web labels of the training rows.
        after: corrected labels; -1 (or a row of -1) is dropped.
        anchors: table with row, class_index, rank.
        evaluated: the test samples with the scores of both models.
        results: the headline figures of both models.
        held_out: the open-set threshold chosen on held-out training data, and on which.
        evidence: sentences of the clean stage by training row.
        missing: stage -> sentence.
    """

    run: Run
    manifest: Manifest
    stages: dict[str, dict[str, Any] | None]
    summary: dict[str, Any]
    classes: list[ClassSpec]
    train: NDArray[np.int64]
    given: Labels
    texts: Matrix | None = None
    visual: Matrix | None = None
    prototypes: Matrix | None = None
    enhanced: Matrix | None = None
    anchors: pd.DataFrame | None = None
    after: Labels | None = None
    fused: KeptScores | None = None
    evidence: pa.ChunkedArray | None = None
    evaluated: Evaluated | None = None
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    history: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    held_out: dict[str, Any] | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Class names, (C,)."""
        return [spec.name for spec in self.classes]

    @property
    def meanings(self) -> list[str]:
        """The text that stands for each class, (C,); empty where only its name is known."""
        return [class_text(spec) if has_meaning(spec) else "" for spec in self.classes]

    @property
    def multi(self) -> bool:
        """Whether samples carry any number of labels."""
        return self.given.ndim == 2


def load(run: Run, plan: Plan, *, held_out: str) -> Loaded:
    """Read everything that the report shows; only the scan is required.

    Args:
        run: The run.
        plan: Its stages.
        held_out: Name of the stage that chose CAPro's open-set threshold.
    """
    manifest = manifest_of(run)
    train = manifest.split("train")
    stages = {stage.name: run.finished(stage.name) for stage in plan.of(run.settings)}
    classes = (
        classes_of(run) if stages["classes"] else [ClassSpec(name) for name in manifest.label_names("train")]
    )
    names = [spec.name for spec in classes]
    reader = _Reader(run, plan, stages)
    after = reader.array(CLEANED_LABELS, len(train))
    return Loaded(
        run=run,
        manifest=manifest,
        stages=stages,
        summary=dict(run.read(SUMMARY)),
        classes=classes,
        train=train,
        given=labels_of(manifest, train, names, others="leave out"),
        texts=reader.array(TEXTS, len(train)),
        visual=reader.array(VISUAL, len(train)),
        prototypes=reader.array(CLASS_TEXTS, len(names)),
        enhanced=reader.array(ENHANCED_TEXTS, len(train)),
        anchors=run.find(ANCHORS),
        after=after,
        fused=reader.scores(len(train), len(names)),
        evidence=None if after is None else _evidence(run, len(train)),
        evaluated=reader.evaluated(),
        results=(stages["evaluate"] or {}).get("result") or {},
        history={name: rows for name, kept in HISTORIES.items() if (rows := run.find(kept)) is not None},
        held_out=_held_out(run, held_out),
        missing=reader.missing,
    )


def _evidence(run: Run, rows: int) -> pa.ChunkedArray | None:
    """The column with the sentences; the table is not read whole, a million rows of it take gigabytes."""
    run.pull(VERDICTS.stage)
    table = next((table for table in (SAMPLE_VERDICTS, VERDICTS) if run.file(table).exists()), None)
    if table is None or "evidence" not in run.read_with(table, pq.read_schema).names:
        return None
    found = run.read_with(table, lambda file: pq.read_table(file, columns=["evidence"])["evidence"])
    return found if len(found) == rows else None


def _held_out(run: Run, stage: str) -> dict[str, Any] | None:
    """The threshold, if it was chosen for the model that is there now."""
    made, model = run.stamp(stage), run.stamp(MODELS["capro"].stage)
    if made is None or model is None or made < model:
        return None
    found = run.result(stage)
    return found if found.get("threshold") is not None else None


class _Reader:
    """Reads artefacts of finished stages and writes down what it did not find."""

    def __init__(self, run: Run, plan: Plan, stages: dict[str, dict[str, Any] | None]) -> None:
        self.run, self.plan = run, plan
        self.missing = {
            name: f"The {name} stage has not finished: run `{plan.command(name, run.place)}`, "
            f"or `capro run --run {run.place}` for all stages."
            for name, done in stages.items()
            if done is None
        }

    def array(self, artefact: Artefact[NDArray[Any]], rows: int) -> NDArray[Any] | None:
        """An array, if it has as many rows as the manifest."""

        def read() -> NDArray[Any] | None:
            found = self.run.read(artefact)
            return found if len(found) == rows else None

        return self._fitting(artefact.stage, read)

    def scores(self, rows: int, classes: int) -> KeptScores | None:
        """The scores behind the verdicts."""
        found = self.array(FUSED_SCORES, rows)
        return None if found is None else KeptScores(found, "fused", classes)

    def _fitting(self, stage: str, read: Callable[[], T | None]) -> T | None:
        """What a finished stage left; None, with a sentence, if that does not fit the scan."""
        if self.run.finished(stage) is None:
            return None
        with suppress(RunError, ValueError):
            found = read()
            if found is not None:
                return found
        command = self.plan.command(stage, self.run.place)
        self.missing[stage] = f"The result of the {stage} stage does not fit the scan: run `{command}` again."
        return None

    def evaluated(self) -> Evaluated | None:
        """The test samples, if both models have scores for exactly them."""
        if self.run.finished("evaluate") and not len(manifest_of(self.run).split("test")):
            self.missing["evaluate"] = (
                "The data have no test split, so nothing was measured on test images: "
                "give one with `data.test` or a split column."
            )
            return None
        return self._fitting("evaluate", lambda: test_split(self.run))
