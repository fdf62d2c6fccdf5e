"""The open-set threshold of a finished run: one rule, on samples that its classifier has not seen.

`evaluate --open-set`, `export-model` and `CAPro` all take it from here (docs/evaluation.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import FinetuneSettings, Schedule
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.evaluate import open_set
from capro.evaluate.scoring import scores_of
from capro.nets.backbones import FeatureBackbone
from capro.nets.siamese import Siamese
from capro.run.artefacts import CLEANED_LABELS, MODELS
from capro.run.directory import Run
from capro.run.fingerprints import seed_for
from capro.run.progress import SILENT, Watch
from capro.run.stage import Job, Stage, perform
from capro.stages.training import fit_once
from capro.train.batches import FeatureInputs, Inputs, forward_plain
from capro.train.classifier_only import ClassifierOnly
from capro.train.setup import TrainingSet, inputs_of, load_net, new_heads, new_net, training_set

VERSION = 1  # raise it when the rule or the refits change
REFITS = 5
ENOUGH = 20_000  # held-out samples; with more, later folds are left out
MOST = 200_000  # samples of refits: their features are in memory


class HeldOut(NamedTuple):
    """Samples that a classifier has not seen."""

    scores: NDArray[np.float32]  # (n, C)
    labels: NDArray[np.int64]  # (n,) or (n, C)
    origin: str


def threshold_stage(method: str) -> Stage:
    """The stage that chooses the threshold of ``vanilla`` or ``capro``."""

    def work(job: Job) -> dict[str, Any]:
        training = training_set(job.run, job.ranks.accelerator.device)
        held = _val(job.run, training, method) or _refits(job, training, method)
        return open_set.held_out(held.scores, held.labels, origin=held.origin)

    def settings(run: Run) -> dict[str, Any]:
        names = ("net", *_steps(method))
        parts = {name: getattr(run.settings, name).model_dump() for name in names}
        return parts | {"version": VERSION, "seed": run.settings.seed}

    reads = ["scan", "classes", MODELS[method].stage, *(["clean"] if method == "capro" else [])]
    name = f"threshold/{method}"
    return Stage(name, work, settings=settings, reads=reads, ranks="share")


def threshold(run: Run, method: str = "capro", *, watch: Watch = SILENT) -> dict[str, Any]:
    """The threshold of a method, and how it came about.

    Held out is the val split where there is one. Else the classifier is trained anew on cached
    features, each time without a fifth of the samples, and judges that fifth: the model itself has
    seen them all and would be too sure of them.
    """
    stage = threshold_stage(method)
    perform(run, stage, watch=watch)
    return run.result(stage.name)


def _steps(method: str) -> tuple[str, ...]:
    """The schedules that made a classifier."""
    return ("pretrain",) if method == "vanilla" else ("train", "finetune")


def _val(run: Run, training: TrainingSet, method: str) -> HeldOut | None:
    """The val split: training data that no step has seen, with its web labels."""
    manifest = manifest_of(run)
    positions = manifest.split("val")
    labels = known_labels(manifest, positions, training.classes)
    known = open_set.is_known(labels)
    if not known.any():
        return None
    scores = scores_of(run, training, MODELS[method], positions[known])
    return HeldOut(scores, labels[known], "the val split, which no step trains on")


# --- without a val split --------------------------------------------------------------------------


def _refits(job: Job, training: TrainingSet, method: str) -> HeldOut:
    """Out-of-fold scores of the samples that the method trained its classifier on."""
    settings, ranks = job.settings, job.ranks
    labels = training.labels.cpu()
    if method == "capro":
        labels = torch.from_numpy(np.array(job.read(CLEANED_LABELS)))
    rng = np.random.default_rng(seed_for(settings.seed, "held out"))
    rows = rng.permutation(np.flatnonzero(open_set.is_known(labels.numpy())))[:MOST]
    if labels.ndim == 1:  # dealt out class by class, so that every fold has its share of each
        rows = rows[np.argsort(labels.numpy()[rows], kind="stable")]
    fold = np.arange(len(rows)) % REFITS
    schedules = [getattr(settings, name) for name in _steps(method)]
    inputs, positions, dim = _features(job, training, method, rows)
    parts: list[NDArray[np.float32]] = []
    judged: list[NDArray[np.int64]] = []
    for number in range(REFITS):
        held, seen = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if sum(len(each) for each in judged) >= ENOUGH or not len(held) or not len(seen):
            break
        heads = new_heads(settings, dim, training, name="held out")
        net = Siamese(FeatureBackbone(dim), heads).to(ranks.accelerator.device)
        own = labels[torch.from_numpy(rows[seen])]
        _refit(job, net, training, own, inputs, positions[seen], schedules)
        parts.append(_probabilities(job, net, training, inputs, positions[held]))
        judged.append(held)
    at = rows[np.concatenate(judged)] if judged else np.zeros(0, dtype=np.int64)
    empty = np.zeros((0, len(training.classes)), dtype=np.float32)
    kind = "cleaned" if method == "capro" else "web-labelled"
    origin = f"{kind} training samples, judged by classifiers trained without them"
    return HeldOut(np.concatenate([empty, *parts]), labels.numpy()[at], origin)


def _features(
    job: Job, training: TrainingSet, method: str, rows: NDArray[np.int64]
) -> tuple[Inputs, NDArray[np.int64], int]:
    """Features of training rows as inputs, their positions in it, and their width.

    In frozen mode the cached views. In full mode unaugmented features of the trained encoder: it has
    seen the samples, so scores are still somewhat too sure; only a val split mends that.
    """
    run, device = job.run, job.ranks.accelerator.device
    net = new_net(run, training).to(device)
    positions = training.positions[rows]
    if run.settings.net.mode == "frozen":
        return inputs_of(run, net.encoder), positions, net.encoder.dim
    load_net(run, MODELS[method], net)
    encoder = net.eval().encoder
    images = inputs_of(run, encoder)
    v = forward_plain(encoder, images, positions, width=encoder.dim, device=device).cpu().numpy()
    everyone = np.arange(len(rows))
    return (FeatureInputs(v, v[None], v[None], everyone, seed=run.settings.seed), everyone, v.shape[1])


def _refit(
    job: Job,
    net: Siamese,
    training: TrainingSet,
    labels: Tensor,
    inputs: Inputs,
    positions: NDArray[np.int64],
    schedules: Sequence[Schedule],
) -> None:
    """The classifier alone, from a fresh start, through the schedules of the steps that made it."""
    ranks, task = job.ranks, training.task(job.settings.net.tau)
    labels = labels.to(ranks.accelerator.device)
    for number, schedule in enumerate(schedules):
        objective = (
            ClassifierOnly.by(schedule, net, task, labels, ranks, inputs, positions)
            if isinstance(schedule, FinetuneSettings)
            else ClassifierOnly(net, task, labels, ranks)
        )
        seed, ids = job.settings.seed + number, training.ids
        fit_once(job, objective, inputs, positions, schedule, name="held-out threshold", seed=seed, ids=ids)
        objective.finish()


def _probabilities(
    job: Job, net: Siamese, training: TrainingSet, inputs: Inputs, positions: NDArray[np.int64]
) -> NDArray[np.float32]:
    task, width = training.task(job.settings.net.tau), len(training.classes)
    device = job.ranks.accelerator.device
    net.eval()

    def probabilities(x: Tensor) -> Tensor:
        return task.probabilities(net.heads.classifier(net.encoder(x)))

    return forward_plain(probabilities, inputs, positions, width=width, device=device).cpu().numpy()
