"""Step 3: the classifier alone, on the cleaned labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import Settings
from capro.method import plus
from capro.run.artefacts import CLEANED_LABELS, HISTORIES, POSTERIOR, STEP1, STEP2, STEP3, WORD_EVIDENCE
from capro.run.directory import Run
from capro.run.stage import Job
from capro.stages.refits import FeatureSource, refitted
from capro.stages.train import has_step2
from capro.stages.training import Parts, deciding, fit_step, parts_of, training_stage
from capro.train.classifier_only import ClassifierOnly
from capro.train.setup import load_net, net_state, new_heads

FOLDS = 3  # of the calibration
ENOUGH = 20_000  # held-out samples; with more, later folds are left out


def _work(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job)
    training, net = parts.training, parts.net
    extra = load_net(job.run, STEP2 if has_step2(settings) else STEP1, net)
    soft = settings.method == "plus" and training.multi_label  # a missing label is no certain negative
    labels = torch.from_numpy(np.array(job.read(POSTERIOR if soft else CLEANED_LABELS)))
    kept = torch.nonzero(~parts.task.out(labels)).flatten()
    positions = training.positions[kept.numpy()]
    labels = labels[kept].to(training.labels.device)
    if not has_step2(settings):
        _start_anew(job, parts, labels, positions)
    objective = ClassifierOnly.by(
        settings.finetune, net, parts.task, labels, job.ranks, parts.inputs, positions
    )
    history = fit_step(job, objective, parts, positions, name="step 3: classifier", seed=settings.seed + 2)
    objective.finish()
    found: dict[str, Any] = {"epochs": len(history), "samples": len(kept)}
    if not has_step2(settings) and not training.multi_label:
        found["sharpness"] = _calibrate(job, parts, labels, positions, kept.numpy())
    if job.ranks.main:
        job.write(STEP3, net_state(net, extra))
        job.write(HISTORIES["finetune"], history)
    return found


def _start_anew(job: Job, parts: Parts, labels: Tensor, positions: NDArray[np.int64]) -> None:
    """A fresh classifier, trained on the cleaned labels as step 1's was on the web's: that one knows the errors."""
    heads = new_heads(job.settings, parts.net.encoder.dim, parts.training, name="step1")
    parts.net.heads.load_state_dict(heads.state_dict())
    fit_step(
        job, ClassifierOnly(parts.net, parts.task, labels, job.ranks), parts, positions,
        name="classifier on the cleaned labels", seed=job.settings.seed, schedule=job.settings.pretrain,
        within="anew",
    )  # fmt: skip


def _calibrate(
    job: Job, parts: Parts, labels: Tensor, positions: NDArray[np.int64], kept: NDArray[np.int64]
) -> float:
    """Scale the classifier so that classifiers like it, on pictures held out, agree best with the words."""
    source = FeatureSource(parts.inputs, positions, parts.net.encoder.dim)
    schedules = [job.settings.pretrain, job.settings.finetune]
    held = refitted(job, parts.training, labels.cpu(), source, schedules, folds=FOLDS, enough=ENOUGH)
    words = torch.from_numpy(np.array(job.read(WORD_EVIDENCE)))[kept[held.rows]][
        :, : len(parts.training.classes)
    ]
    words = words.log_softmax(dim=1)
    sharp, _ = plus.sharpness(held.logits, words, words.exp().mean(dim=0))
    sharp = min(max(sharp, 0.1), 10.0)  # where words say nothing it stays as it is, or nearly
    with torch.no_grad():
        for parameter in parts.net.heads.classifier.parameters():
            parameter.mul_(sharp)
    return sharp


def _reads(settings: Settings) -> list[str]:
    posterior = ["posterior"] if settings.method == "plus" else []
    return ["train" if has_step2(settings) else "pretrain", "clean", *posterior]


def _settings(run: Run) -> Mapping[str, Any]:
    anew = {} if has_step2(run.settings) else {"start": "anew", "calibrated": True}
    return {**deciding("finetune")(run), **anew}


STAGE = training_stage("finetune", _work, summary="step 3", reads=_reads, settings=_settings)
