"""What a run directory holds for the report: checked, with a plain sentence for what is missing.

A stage that has not finished, or whose arrays belong to another scan, is absent here. Nothing is
computed; arrays stay memory maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capro.data.manifest import Manifest
from capro.data.pixels import Pixels
from capro.errors import RunError
from capro.runs import Run, read_array, read_json
from capro.text.classes import ClassSpec, class_text

STAGES = (
    "scan",
    "classes",
    "pixels",
    "features",
    "pretrain",
    "embed",
    "match",
    "train",
    "clean",
    "finetune",
    "evaluate",
)
HELD_OUT = "threshold/capro"  # the stage with CAPro's open-set threshold; made when it is asked for
Labels = NDArray[np.int64]  # (n,) classes with -1 for none, or (n, C) membership


@dataclass(frozen=True)
class Loaded:
    """A run as the report sees it; None is what is not there, and ``missing`` says why.

    Attributes:
        names: class names, (C,).
        meanings: the text that stands for each class, (C,).
        train: manifest positions of the training rows, (n,).
        test: manifest positions of the test rows, (m,).
        given: web labels of the training rows.
        truth: labels of the test rows; -1 (or a zero row) is outside the known classes.
        after: cleaned labels; -1 (or a row of -1) is dropped.
        anchors: table with row, class_index, rank.
        held_out: the open-set threshold chosen on held-out training data, and on which.
        evidence: sentences of the clean stage by sample id; empty where it wrote none.
        missing: stage -> sentence.
    """

    run: Run
    manifest: Manifest
    summary: dict[str, Any]
    names: list[str]
    meanings: list[str]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    given: Labels
    truth: Labels
    texts: NDArray[np.float32] | None = None
    visual: NDArray[np.float32] | None = None
    prototypes: NDArray[np.float32] | None = None
    enhanced: NDArray[np.float32] | None = None
    anchors: pd.DataFrame | None = None
    after: Labels | None = None
    fused: NDArray[np.float32] | None = None
    evidence: dict[str, str] = field(default_factory=dict)
    scores: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    history: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, Any] | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def multi(self) -> bool:
        """Whether samples carry any number of labels."""
        return self.given.ndim == 2

    def pixels(self, side: int) -> Pixels:
        """Pictures by manifest position; from the cache where there is one."""
        folder = self.run.folder("pixels")
        cache = folder if "pixels" in self.stages and (folder / "index.npy").exists() else None
        return Pixels(self.manifest, self.run.settings.scan, min_side=2 * side, cache=cache)


def load(run: Run) -> Loaded:
    """Read everything that the report shows; only the scan is required."""
    run.need("scan")
    manifest = Manifest.load(run.folder("scan") / "manifest.parquet")
    stages = {name: done for name in STAGES if (done := run.finished(name))}
    specs = _specs(run, manifest, stages)
    names = [spec.name for spec in specs]
    train, test = manifest.split("train"), manifest.split("test")
    reader = _Reader(run, stages)
    after = reader.array("clean", "labels", len(train))
    return Loaded(
        run=run,
        manifest=manifest,
        summary=dict(read_json(run.folder("scan") / "summary.json")),
        names=names,
        meanings=[_meaning(spec) for spec in specs],
        train=train,
        test=test,
        given=labels_of(manifest, train, names),
        truth=labels_of(manifest, test, names),
        texts=reader.array("embed", "texts", len(train)),
        visual=reader.array("embed", "visual", len(train)),
        prototypes=reader.array("embed", "prototypes", len(names)),
        enhanced=reader.optional("graph", "texts", len(train)),
        anchors=reader.table("match", "anchors"),
        after=after,
        fused=None if after is None else reader.array("clean", "fused", len(train)),
        evidence={} if after is None else reader.evidence(),
        scores=reader.scores(len(test)),
        results=_results(stages),
        history=reader.history(),
        stages=stages,
        held_out=_held_out(run),
        missing=reader.missing,
    )


def labels_of(manifest: Manifest, rows: NDArray[np.int64], names: Sequence[str]) -> Labels:
    """Labels as class numbers, (n,), or membership, (n, C); names outside the list are nobody's."""
    index = {name: number for number, name in enumerate(names)}
    cells = manifest.samples["labels"].iloc[rows].tolist()
    if manifest.task == "single":
        return np.array([index.get(cell[0], -1) if cell else -1 for cell in cells], dtype=np.int64)
    member = np.zeros((len(cells), len(names)), dtype=np.int64)
    for row, cell in enumerate(cells):
        member[row, [index[name] for name in cell if name in index]] = 1
    return member


def _specs(run: Run, manifest: Manifest, stages: dict[str, Any]) -> list[ClassSpec]:
    if "classes" in stages:
        found = read_json(run.folder("classes") / "classes.json")
        return [ClassSpec(**value) for value in found]
    return [ClassSpec(name) for name in manifest.label_names("train")]


def _meaning(spec: ClassSpec) -> str:
    text, warning = class_text(spec)
    return "" if warning else text


def _results(stages: dict[str, Any]) -> dict[str, dict[str, float]]:
    found = (stages.get("evaluate") or {}).get("result") or {}
    return {
        name: {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        for name in ("vanilla", "capro")
        if isinstance(row := found.get(name), dict)
    }


def _held_out(run: Run) -> dict[str, Any] | None:
    """What the threshold stage chose, if it chose for the model that is there now."""
    done, made, model = run.finished(HELD_OUT), run.stamp(HELD_OUT), run.stamp("finetune")
    if done is None or made is None or model is None or made < model:
        return None
    return dict(done["result"]) if done["result"].get("threshold") is not None else None


class _Reader:
    """Reads artefacts of finished stages and writes down what it did not find."""

    def __init__(self, run: Run, stages: dict[str, Any]) -> None:
        self.run, self.stages = run, stages
        self.missing = {
            name: f"The {name} stage has not finished: run `capro {name} --run {run.path}`, "
            "or `capro run` for all stages."
            for name in STAGES
            if name not in stages and name != "features"
        }

    def array(self, stage: str, name: str, rows: int) -> NDArray[Any] | None:
        """An array of a stage, if it has as many rows as the manifest says."""
        if stage not in self.stages:
            return None
        try:
            found = read_array(self.run.folder(stage) / f"{name}.npy")
        except (RunError, ValueError):
            found = None
        if found is None or len(found) != rows:
            self.missing[stage] = (
                f"What the {stage} stage left does not fit the scan: run `capro {stage} "
                f"--run {self.run.path}` again."
            )
            return None
        return found

    def optional(self, stage: str, name: str, rows: int) -> NDArray[Any] | None:
        """An array that the report can do without."""
        fits = (self.run.folder(stage) / f"{name}.npy").exists()
        return self.array(stage, name, rows) if fits else None

    def table(self, stage: str, name: str) -> pd.DataFrame | None:
        """A table of a stage."""
        file = self.run.folder(stage) / f"{name}.parquet"
        return pd.read_parquet(file) if stage in self.stages and file.exists() else None

    def evidence(self) -> dict[str, str]:
        """Sentences by sample id: with several labels they are in the table of samples."""
        for name in ("samples", "verdicts"):
            frame = self.table("clean", name)
            if frame is not None and "evidence" in frame:
                return dict(zip(frame["id"], frame["evidence"], strict=True))
        return {}

    def scores(self, rows: int) -> dict[str, NDArray[np.float32]]:
        """Probabilities of vanilla and CAPro on the test rows, (m, C); both or none."""
        if "evaluate" in self.stages and not rows:
            self.missing["evaluate"] = (
                "The data has no test split, so nothing was measured on held-out images: "
                "give one with `data.test` or a split column."
            )
        if not rows:
            return {}
        found = {name: self.array("evaluate", name, rows) for name in ("vanilla", "capro")}
        return {name: scores for name, scores in found.items() if scores is not None}

    def history(self) -> dict[str, list[dict[str, float]]]:
        """Figures of every epoch, by stage."""
        return {
            stage: read_json(file)
            for stage in ("pretrain", "train", "finetune")
            if stage in self.stages and (file := self.run.folder(stage) / "history.json").exists()
        }
