"""The open-set threshold of a finished run: one rule, on samples that its classifier has not seen.

`evaluate --open-set`, `export-model` and `CAPro` all take it from here (docs/evaluation.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from capro.config import Settings
from capro.core.linear import NO_CALIBRATION
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import CLEANED_LABELS, MODELS
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.pipeline.stage import Job, Stage, perform
from capro.results import open_set
from capro.stages.plan import classifier_steps, threshold_name
from capro.stages.training import calibration_of, held_out_logits, targets_of
from capro.train.setup import TrainingSet, scores_of, training_set

VERSION = 2  # raise it when the rule or the refits change


def threshold_stage(method: str) -> Stage:
    """The stage that chooses the threshold of ``vanilla`` or ``capro``."""

    def work(job: Job) -> dict[str, Any]:
        training = training_set(job.run, job.ranks.accelerator.device)
        return _by_val(job.run, training, method) or _by_refits(job, training, method)

    def settings(run: Run) -> dict[str, Any]:
        names = ("net", *_steps(method, run.settings))
        parts = {name: getattr(run.settings, name).model_dump(exclude={"runtime"}) for name in names}
        return parts | {"version": VERSION, "seed": run.settings.seed}

    reads = ["scan", "classes", MODELS[method].stage, *(["clean"] if method == "capro" else [])]
    return Stage(threshold_name(method), work, settings=settings, reads=reads, ranks="train")


def threshold(run: Run, method: str = "capro", *, watch: Watch = SILENT) -> dict[str, Any]:
    """The threshold of a method, and how it came about.

    Held out is the val split where there is one. Else the classifier is trained anew on cached
    features, each time without a fifth of the samples, and judges that fifth: the model itself has
    seen them all and would be too sure of them.
    """
    stage = threshold_stage(method)
    perform(run, stage, watch=watch)
    return run.result(stage.name)


def _steps(method: str, settings: Settings) -> tuple[str, ...]:
    """The schedules that made a classifier."""
    return ("pretrain",) if method == "vanilla" else classifier_steps(settings)


def _by_val(run: Run, training: TrainingSet, method: str) -> dict[str, Any] | None:
    """The val split: training data that no step has seen, with its web labels."""
    manifest = manifest_of(run)
    positions = manifest.split("val")
    labels = known_labels(manifest, positions, training.classes)
    known = training.kind.labelled(labels)
    if not known.any():
        return None
    scores = scores_of(run, training, MODELS[method], positions[known])
    return open_set.held_out(scores, labels[known], origin="the val split, which no step trains on")


def _by_refits(job: Job, training: TrainingSet, method: str) -> dict[str, Any]:
    """Scores of the samples that the method trained its classifier on, by classifiers without them."""
    run, settings = job.run, job.settings
    labels = targets = training.labels.cpu()
    calibration = NO_CALIBRATION
    if method == "capro":
        labels = torch.from_numpy(np.array(job.read(CLEANED_LABELS)))
        targets, calibration = targets_of(run, training), calibration_of(run)
    schedules = [getattr(settings, name) for name in _steps(method, settings)]
    rows, logits = held_out_logits(
        job, training, targets, schedules, model=MODELS[method], name="held-out threshold"
    )
    judged = labels.numpy()[rows]
    scores = training.task(settings.net.tau).probabilities(calibration(logits)).numpy()
    known = training.kind.labelled(judged)
    kind = "cleaned" if method == "capro" else "web-labelled"
    origin = f"{kind} training samples, judged by classifiers trained without them"
    return open_set.held_out(scores[known], judged[known], origin=origin)
