"""Classifiers that are trained without some samples and judge those: for calibration and open-set threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import FinetuneSettings, Schedule
from capro.nets.backbones import Backbone, FeatureBackbone
from capro.nets.siamese import Siamese
from capro.run.fingerprints import seed_for
from capro.run.stage import Job
from capro.stages.training import fit_once
from capro.train.batches import FeatureInputs, Inputs, forward_plain
from capro.train.classifier_only import ClassifierOnly
from capro.train.setup import TrainingSet, Weights, inputs_of, load_net, new_heads, new_net

FOLDS = 5
ENOUGH = 20_000  # held-out samples; with more, later folds are left out
MOST = 200_000  # samples of refits: their features are in memory


class HeldOut(NamedTuple):
    """Training rows that were judged, and their logits."""

    rows: NDArray[np.int64]  # (m,)
    logits: Tensor  # (m, C)


def held_out_logits(
    job: Job,
    training: TrainingSet,
    labels: Tensor,
    schedules: Sequence[Schedule],
    *,
    model: Weights,
    name: str,
    folds: int = FOLDS,
) -> HeldOut:
    """Logits of training samples by classifiers that have not seen them.

    A fresh classifier goes through the schedules on four fifths of the samples and judges the rest.

    Args:
        job: The stage at work.
        training: The training set.
        labels: What is learnt, (n,) or (n, C); rows that are out are neither learnt nor judged.
        schedules: Of the steps that made the classifier which these stand for.
        model: Where the encoder comes from in full mode.
        name: For messages.
        folds: How many of the five folds are judged.
    """
    settings, ranks = job.settings, job.ranks
    rng = np.random.default_rng(seed_for(settings.seed, "held out"))
    out = training.task(settings.net.tau).out(labels)
    rows = rng.permutation(np.flatnonzero(~out.numpy()))[:MOST]
    if labels.ndim == 1:  # dealt out class by class, so that every fold has its share of each
        rows = rows[np.argsort(labels.numpy()[rows], kind="stable")]
    fold = np.arange(len(rows)) % FOLDS
    inputs, positions, encoder = _features(job, training, model, rows)
    parts, judged = [torch.zeros(0, len(training.classes))], [np.zeros(0, dtype=np.int64)]
    for number in range(folds):
        held, seen = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if sum(len(each) for each in judged) >= ENOUGH or not len(held) or not len(seen):
            break
        heads = new_heads(settings, encoder.dim, training, name="held out")
        net = Siamese(encoder, heads).to(ranks.accelerator.device)
        own = labels[torch.from_numpy(rows[seen])]
        _refit(job, net, training, own, inputs, positions[seen], schedules, name)
        parts.append(_logits(job, net, training, inputs, positions[held]))
        judged.append(rows[held])
    return HeldOut(np.concatenate(judged), torch.cat(parts))


def _features(
    job: Job, training: TrainingSet, model: Weights, rows: NDArray[np.int64]
) -> tuple[Inputs, NDArray[np.int64], Backbone]:
    """Features of training rows as inputs, their positions in it, and what stands for the encoder.

    In frozen mode the cached views. In full mode unaugmented features of the trained encoder: it has
    seen the samples, so scores are still somewhat too sure; only a val split mends that.
    """
    run, device = job.run, job.ranks.accelerator.device
    net = new_net(run, training).to(device)
    positions = training.positions[rows]
    if run.settings.net.mode == "frozen":
        return inputs_of(run, net.encoder), positions, net.encoder
    load_net(run, model, net)
    encoder = net.eval().encoder
    images = inputs_of(run, encoder)
    v = forward_plain(encoder, images, positions, width=encoder.dim, device=device).cpu().numpy()
    everyone = np.arange(len(rows))
    inputs = FeatureInputs(v, v[None], v[None], everyone, seed=run.settings.seed)
    return inputs, everyone, FeatureBackbone(v.shape[1])


def _refit(
    job: Job,
    net: Siamese,
    training: TrainingSet,
    labels: Tensor,
    inputs: Inputs,
    positions: NDArray[np.int64],
    schedules: Sequence[Schedule],
    name: str,
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
        fit_once(job, objective, inputs, positions, schedule, name=name, seed=seed, ids=ids)
        objective.finish()


def _logits(
    job: Job, net: Siamese, training: TrainingSet, inputs: Inputs, positions: NDArray[np.int64]
) -> Tensor:
    device, width = job.ranks.accelerator.device, len(training.classes)
    net.eval()
    return forward_plain(
        lambda x: net.heads.classifier(net.encoder(x)), inputs, positions, width=width, device=device
    ).cpu()
