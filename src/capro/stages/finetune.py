"""Step 3: the classifier alone, on the cleaned labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from capro.config import Settings
from capro.run.artefacts import CLEANED_LABELS, FUSED_SCORES, HISTORIES, STEP1, STEP2, STEP3
from capro.run.stage import Job
from capro.stages.train import has_step2
from capro.stages.training import fit_step, parts_of, training_stage
from capro.train.classifier_only import ClassifierOnly
from capro.train.setup import load_net, net_state


def _work(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job)
    training, net = parts.training, parts.net
    extra = load_net(job.run, STEP2 if has_step2(settings) else STEP1, net)
    soft = settings.method == "plus" and training.multi_label  # a missing label is no certain negative
    labels = torch.from_numpy(np.array(job.read(FUSED_SCORES if soft else CLEANED_LABELS)))
    kept = torch.nonzero(~parts.task.out(labels)).flatten()
    positions = training.positions[kept.numpy()]
    labels = labels[kept].to(training.labels.device)
    objective = ClassifierOnly.by(
        settings.finetune, net, parts.task, labels, job.ranks, parts.inputs, positions
    )
    history = fit_step(job, objective, parts, positions, name="step 3: classifier", seed=settings.seed + 2)
    objective.finish()
    if job.ranks.main:
        job.write(STEP3, net_state(net, extra))
        job.write(HISTORIES["finetune"], history)
    return {"epochs": len(history), "samples": len(kept)}


def _reads(settings: Settings) -> list[str]:
    return ["train" if has_step2(settings) else "pretrain", "clean"]


STAGE = training_stage("finetune", _work, summary="step 3", reads=_reads)
