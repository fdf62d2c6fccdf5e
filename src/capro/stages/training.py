"""What the three trainings share: parts, fitting by the stage's schedule, checkpoints, what decides them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from capro.config import Schedule
from capro.nets.siamese import Siamese
from capro.run.artefacts import NOT_FINITE
from capro.run.directory import Run
from capro.run.ranks import tracked
from capro.run.stage import Job
from capro.train.batches import Inputs
from capro.train.checkpoints import Checkpoints
from capro.train.loop import fit
from capro.train.objective import Objective
from capro.train.setup import TrainingSet, inputs_of, new_net, training_set
from capro.train.tasks import Task


@dataclass(frozen=True)
class Parts:
    """What a step works on."""

    training: TrainingSet
    task: Task
    net: Siamese
    inputs: Inputs


def parts_of(run: Run, device: torch.device) -> Parts:
    """Training set, task, new networks, and where their input is from, on a device."""
    training = training_set(run, device)
    net = new_net(run, training).to(device)
    task = training.task(run.settings.net.tau)
    return Parts(training, task, net, inputs_of(run, net.encoder))


def fit_step(
    job: Job,
    objective: Objective,
    parts: Parts,
    positions: NDArray[np.int64],
    *,
    name: str,
    seed: int,
    schedule: Schedule | None = None,
    within: str = "",
) -> list[dict[str, float]]:
    """Train an objective by the stage's schedule; returns the history.

    Args:
        job: The stage at work.
        objective: What to train.
        parts: Where views come from.
        positions: Manifest position of each training row.
        name: For messages.
        seed: Of the order of samples.
        schedule: Another schedule than the stage's.
        within: Name of a training within the stage: its checkpoints stay apart.
    """
    settings, stage = job.settings, job.stage.name
    with tracked(job.ranks, stage, settings, wanted=not within) as log:
        return fit(
            objective,
            parts.inputs,
            positions,
            schedule or getattr(settings, stage),
            name=name,
            seed=seed,
            ranks=job.ranks,
            ids=parts.training.ids,
            checkpoints=_checkpoints(job, within),
            bar=job.bar,
            checkpoint_minutes=settings.log.checkpoint_minutes,
            log=log,
        )


def fit_once(
    job: Job,
    objective: Objective,
    inputs: Inputs,
    positions: NDArray[np.int64],
    schedule: Schedule,
    *,
    name: str,
    seed: int,
    ids: list[str],
    within: str | None = None,
) -> list[dict[str, float]]:
    """Train by a schedule of its own, see `fit`; returns the history.

    ``within`` names its folder of checkpoints. A training of seconds has none.
    """
    kept = None if within is None else _checkpoints(job, within)
    minutes = job.settings.log.checkpoint_minutes
    return fit(
        objective, inputs, positions, schedule, name=name, seed=seed, ranks=job.ranks, ids=ids, bar=job.bar,
        checkpoints=kept, checkpoint_minutes=minutes,
    )  # fmt: skip


def _checkpoints(job: Job, within: str = "") -> Checkpoints:
    return Checkpoints(job.folder.joinpath("checkpoints", within), job.key)


def clear(job: Job) -> None:
    """Remove what a training needed to go on, once its result is there."""
    _checkpoints(job).clear()
    (job.folder / NOT_FINITE).unlink(missing_ok=True)  # of an attempt that failed
