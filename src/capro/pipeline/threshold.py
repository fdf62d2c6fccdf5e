"""The open-set threshold of a finished run: one rule, on samples that its classifier has not seen.

`evaluate --open-set`, `export-model` and `CAPro` all take it from here (docs/evaluation.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro import assemble, progress
from capro.assemble import TrainingSet, manifest_of
from capro.config import FinetuneSettings, Schedule
from capro.data.manifest import Manifest
from capro.evaluate import openset
from capro.nets.backbones import FeatureBackbone
from capro.nets.siamese import Siamese
from capro.pipeline.base import stage
from capro.pipeline.results import MODELS, known_labels, scores_of
from capro.runs import Run, read_array, seed_for
from capro.train.batches import FeatureInputs, Inputs, plain_batches
from capro.train.loop import fit
from capro.train.ranks import Ranks
from capro.train.steps import ClassifierOnly

VERSION = 1  # raise it when the rule or the refits change
FOLDS = 5
ENOUGH = 20_000  # held-out samples; with more, later folds are left out
MOST = 200_000  # samples of refits: their features are in memory


class HeldOut(NamedTuple):
    """Samples that a classifier has not seen."""

    scores: NDArray[np.float32]  # (n, C)
    labels: NDArray[np.int64]  # (n,) or (n, C)
    origin: str


def threshold(
    run: Run, method: str = "capro", *, bar: progress.Bar = progress.silent
) -> dict[str, Any]:
    """The threshold of ``vanilla`` or ``capro``, and how it came about; the stage threshold/METHOD.

    Held out is the val split where there is one. Else the classifier is trained anew on cached
    features, each time without a fifth of the samples, and judges that fifth: the model itself has
    seen them all and would be too sure of them.
    """
    settings, manifest = run.settings, manifest_of(run)
    ranks = assemble.ranks_of(settings)

    def work(_folder: Path) -> dict[str, Any]:
        training = assemble.training_set(run, manifest, ranks.accelerator.device)
        held = _val(run, manifest, training, method) or _refits(
            run, manifest, training, method, ranks, bar
        )
        return openset.held_out(held.scores, held.labels, origin=held.origin)

    parts = {name: getattr(settings, name).model_dump() for name in ("net", *_steps(method))}
    decides = parts | {"version": VERSION, "seed": settings.seed}
    read = ["scan", "classes", MODELS[method], *(["clean"] if method == "capro" else [])]
    stage(run, f"threshold/{method}", work, settings=decides, inputs=read, ranks=ranks)
    return dict((run.finished(f"threshold/{method}") or {})["result"])


def _steps(method: str) -> tuple[str, ...]:
    """The schedules that made a classifier."""
    return ("pretrain",) if method == "vanilla" else ("train", "finetune")


def _val(run: Run, manifest: Manifest, training: TrainingSet, method: str) -> HeldOut | None:
    """The val split: training data that no step has seen, with its web labels."""
    positions = manifest.split("val")
    labels = known_labels(manifest, positions, training.classes)
    known = openset.is_known(labels)
    if not known.any():
        return None
    model = run.folder(MODELS[method]) / "model.safetensors"
    scores = scores_of(run, manifest, training, model, positions[known])
    return HeldOut(scores, labels[known], "the val split, which no step trains on")


# --- without a val split --------------------------------------------------------------------------


def _refits(
    run: Run,
    manifest: Manifest,
    training: TrainingSet,
    method: str,
    ranks: Ranks,
    bar: progress.Bar,
) -> HeldOut:
    """Out-of-fold scores of the samples that the method trained its classifier on."""
    settings = run.settings
    labels = training.labels.cpu()
    if method == "capro":
        labels = torch.from_numpy(np.array(read_array(run.folder("clean") / "labels.npy")))
    rng = np.random.default_rng(seed_for(settings.seed, "held out"))
    rows = rng.permutation(np.flatnonzero(openset.is_known(labels.numpy())))[:MOST]
    if labels.ndim == 1:  # dealt out class by class, so that every fold has its share of each
        rows = rows[np.argsort(labels.numpy()[rows], kind="stable")]
    fold = np.arange(len(rows)) % FOLDS
    schedules = [getattr(settings, name) for name in _steps(method)]
    inputs, positions, dim = _features(run, manifest, training, method, rows, ranks)
    parts: list[NDArray[np.float32]] = []
    judged: list[NDArray[np.int64]] = []
    for number in range(FOLDS):
        held, seen = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if sum(len(each) for each in judged) >= ENOUGH or not len(held) or not len(seen):
            break
        heads = assemble.new_heads(settings, dim, training, name="held out")
        net = Siamese(FeatureBackbone(dim), heads).to(ranks.accelerator.device)
        own = labels[torch.from_numpy(rows[seen])]
        _train(run, net, training, own, inputs, positions[seen], schedules, ranks, bar)
        parts.append(_judge(run, net, training, inputs, positions[held], ranks))
        judged.append(held)
    at = rows[np.concatenate(judged)] if judged else np.zeros(0, dtype=np.int64)
    empty = np.zeros((0, len(training.classes)), dtype=np.float32)
    kind = "cleaned" if method == "capro" else "web-labelled"
    origin = f"{kind} training samples, judged by classifiers trained without them"
    return HeldOut(np.concatenate([empty, *parts]), labels.numpy()[at], origin)


def _features(
    run: Run,
    manifest: Manifest,
    training: TrainingSet,
    method: str,
    rows: NDArray[np.int64],
    ranks: Ranks,
) -> tuple[Inputs, NDArray[np.int64], int]:
    """Features of training rows as inputs, their positions in it, and their width.

    In frozen mode the cached views. In full mode unaugmented features of the trained encoder: it has
    seen the samples, so scores are still somewhat too sure; only a val split mends that.
    """
    net = assemble.new_net(run, training).to(ranks.accelerator.device)
    positions = training.positions[rows]
    if run.settings.net.mode == "frozen":
        return assemble.inputs_of(run, manifest, net.encoder), positions, net.encoder.dim
    assemble.load_net(run.folder(MODELS[method]) / "model.safetensors", net)
    net.eval()
    images = assemble.inputs_of(run, manifest, net.encoder)
    device = ranks.accelerator.device
    v = np.zeros((len(rows), net.encoder.dim), dtype=np.float32)
    with torch.no_grad():
        for block, x in plain_batches(images, positions, size=256, device=device):
            v[block] = net.encoder(x).float().cpu().numpy()
    everyone = np.arange(len(rows))
    return (
        FeatureInputs(v, v[None], v[None], everyone, seed=run.settings.seed),
        everyone,
        v.shape[1],
    )


def _train(
    run: Run,
    net: Siamese,
    training: TrainingSet,
    labels: Tensor,
    inputs: Inputs,
    positions: NDArray[np.int64],
    schedules: Sequence[Schedule],
    ranks: Ranks,
    bar: progress.Bar,
) -> None:
    """The classifier alone, from a fresh start, through the schedules of the steps that made it."""
    task = training.task(run.settings.net.tau)
    labels = labels.to(ranks.accelerator.device)
    for number, schedule in enumerate(schedules):
        objective = (
            ClassifierOnly.by(schedule, net, task, labels, ranks, inputs, positions)
            if isinstance(schedule, FinetuneSettings)
            else ClassifierOnly(net, task, labels, ranks)
        )
        fit(
            objective,
            inputs,
            positions,
            schedule,
            name="held-out threshold",
            seed=run.settings.seed + number,
            ranks=ranks,
            ids=training.ids,
            bar=bar,
        )
        objective.finish()


@torch.no_grad()
def _judge(
    run: Run,
    net: Siamese,
    training: TrainingSet,
    inputs: Inputs,
    positions: NDArray[np.int64],
    ranks: Ranks,
) -> NDArray[np.float32]:
    task, device = training.task(run.settings.net.tau), ranks.accelerator.device
    net.eval()
    parts = [
        task.probabilities(net.heads.classifier(net.encoder(x))).float().cpu().numpy()
        for _, x in plain_batches(inputs, positions, size=256, device=device)
    ]
    return np.concatenate(parts)
