"""Step 3: the classifier alone, on the corrected labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from capro.config import Settings
from capro.method.plus import NO_CALIBRATION, Calibration, calibrate
from capro.run.artefacts import CLEANED_LABELS, CLEANED_WORDS, FUSED_SCORES, HISTORIES, STEP1, STEP2, STEP3
from capro.run.directory import Run
from capro.run.kept_scores import KeptScores
from capro.run.stage import Job
from capro.stages.held_out import held_out_logits
from capro.stages.plan import classifier_steps, has_step2
from capro.stages.training import fit_step, parts_of
from capro.train.classifier_only import ClassifierOnly
from capro.train.setup import TrainingSet, load_net, net_state


def targets_of(run: Run, training: TrainingSet) -> Tensor:
    """What step 3 learns, (n,) or (n, C): the corrected labels.

    Plus with several labels: what the words say of every class, since a missing label is no certain
    negative. What the picture says is left out: the classifier would learn its own beliefs.
    """
    soft = run.settings.method == "plus" and training.multi_label
    return torch.from_numpy(np.array(run.read(CLEANED_WORDS if soft else CLEANED_LABELS)))


def calibration_of(run: Run) -> Calibration:
    """How step 3 calibrated its classifier."""
    found = run.result("finetune").get("calibration")
    return Calibration(**found) if found else NO_CALIBRATION


def work(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job.run, job.ranks.accelerator.device)
    training, net = parts.training, parts.net
    extra = load_net(job.run, _before(settings), net)
    labels = targets_of(job.run, training)
    kept = torch.nonzero(~parts.task.out(labels)).flatten()
    positions = training.positions[kept.numpy()]
    own = labels[kept].to(training.labels.device)
    objective = ClassifierOnly.by(settings.finetune, net, parts.task, own, job.ranks, parts.inputs, positions)
    history = fit_step(job, objective, parts, positions, name="step 3: classifier", seed=settings.seed + 2)
    objective.finish()
    found: dict[str, Any] = {"epochs": len(history), "samples": len(kept)}
    if settings.method == "plus":
        calibration = _calibration(job, training, labels)
        with torch.no_grad():
            net.heads.classifier.weight.mul_(calibration.scale)
            net.heads.classifier.bias.copy_(calibration(net.heads.classifier.bias))
        found["calibration"] = calibration._asdict()
    if job.ranks.main:
        job.write(STEP3, net_state(net, extra))
        job.write(HISTORIES["finetune"], history)
    return found


def _calibration(job: Job, training: TrainingSet, labels: Tensor) -> Calibration:
    """Fitted to the posterior of samples that the classifier has not seen."""
    settings = job.settings
    schedules = [getattr(settings, name) for name in classifier_steps(settings)]
    held = held_out_logits(
        job, training, labels, schedules, model=_before(settings), name="calibration", folds=1
    )
    q = KeptScores(job.read(FUSED_SCORES), "fused", len(training.classes))[held.rows]
    return calibrate(held.logits, torch.from_numpy(q), several=training.multi_label)


def _before(settings: Settings) -> Any:
    """The model that step 3 starts from."""
    return STEP2 if has_step2(settings) else STEP1
