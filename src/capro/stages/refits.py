"""Classifiers that are trained anew without some samples, to judge those: held-out scores of training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import FinetuneSettings, Schedule
from capro.nets.backbones import FeatureBackbone
from capro.nets.siamese import Siamese
from capro.run.stage import Job
from capro.stages.training import fit_once
from capro.train.batches import Inputs, forward_plain
from capro.train.classifier_only import ClassifierOnly
from capro.train.setup import TrainingSet, new_heads


class FeatureSource(NamedTuple):
    """Features of some training rows."""

    inputs: Inputs
    positions: NDArray[np.int64]  # of the rows in the inputs, (n,)
    width: int  # d_v


class Refitted(NamedTuple):
    """What classifiers give for rows that they have not seen."""

    rows: NDArray[np.int64]  # which of the source's rows, (m,)
    logits: Tensor  # (m, C), on the CPU


def refitted(
    job: Job,
    training: TrainingSet,
    labels: Tensor,
    source: FeatureSource,
    schedules: Sequence[Schedule],
    *,
    folds: int,
    enough: int,
) -> Refitted:
    """Logits of rows by classifiers that were trained on the other folds.

    Args:
        job: The stage at work.
        training: Classes and task.
        labels: Of the source's rows, (n,) or (n, C).
        source: Their features.
        schedules: Those of the steps that made the classifier to imitate, in order.
        folds: Row i is in fold i modulo this.
        enough: Rows; with more, later folds are left out.
    """
    device, classes = job.ranks.accelerator.device, len(training.classes)
    fold = np.arange(len(labels)) % folds
    rows, parts = [np.zeros(0, dtype=np.int64)], [torch.zeros(0, classes)]
    for number in range(folds):
        held, seen = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if sum(map(len, rows)) >= enough or not len(held) or not len(seen):
            break
        heads = new_heads(job.settings, source.width, training, name="held out")
        net = Siamese(FeatureBackbone(source.width), heads).to(device)
        own = labels[torch.from_numpy(seen)].to(device)
        _fit(job, net, training, own, source.inputs, source.positions[seen], schedules)
        net.eval()
        at = source.positions[held]
        parts.append(
            forward_plain(heads.classifier, source.inputs, at, width=classes, device=device).detach().cpu()
        )
        rows.append(held)
    return Refitted(np.concatenate(rows), torch.cat(parts))


def _fit(
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
    for number, schedule in enumerate(schedules):
        objective = (
            ClassifierOnly.by(schedule, net, task, labels, ranks, inputs, positions)
            if isinstance(schedule, FinetuneSettings)
            else ClassifierOnly(net, task, labels, ranks)
        )
        seed, ids = job.settings.seed + number, training.ids
        fit_once(job, objective, inputs, positions, schedule, name="held-out samples", seed=seed, ids=ids)
        objective.finish()
