"""Step 2: prototypes, bootstrapping, label correction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.method.references import provider
from capro.method.text_evidence import TextEvidence
from capro.run.artefacts import CLASS_TEXTS, ENHANCED_TEXTS, HISTORIES, POSTERIOR, STEP1, STEP2
from capro.run.directory import Run
from capro.run.kept_scores import CLASS, Entries
from capro.run.stage import Job
from capro.stages.decided import settled_set
from capro.stages.posterior import weigh
from capro.stages.training import Parts, fit_step, parts_of
from capro.train.judgement import Judge, PosteriorJudge
from capro.train.prototype_learning import PrototypeLearning
from capro.train.setup import TrainingSet, anchored_of, load_net, net_state, new_heads
from capro.train.tasks import Task
from capro.train.web_labels import WebLabels


def judge_of(run: Run, training: TrainingSet, task: Task, rows: NDArray[np.int64] | None = None) -> Judge:
    """The label rule of a run: the posterior, or the fused score with the texts where they count in it.

    Args:
        run: The run.
        training: The rows that are judged.
        task: One label or several.
        rows: Their numbers among all training rows, where they are not all (the paper's rule).
    """
    settings, texts = run.settings.train, None
    if run.settings.method == "plus":
        states, q = (part.to(training.labels.device) for part in _states(run.read(POSTERIOR)))
        return PosteriorJudge(
            task, settings, states=states, q=q,
            posterior=lambda v: _states(_weighed_again(run, training, v)),
            sure=run.settings.plus.ask_below,
        )  # fmt: skip
    if settings.text_weight and not training.multi_label:
        labels = training.labels.cpu().numpy()
        own = run.read(ENHANCED_TEXTS) if rows is None else run.read(ENHANCED_TEXTS)[rows]
        texts = TextEvidence.fitted(own, run.read(CLASS_TEXTS), labels)
    return Judge(task, settings, texts)


def _weighed_again(run: Run, training: TrainingSet, features: Tensor) -> Entries:
    """The posterior of features that step 2 has learnt, (n, d_v)."""
    return np.concatenate(list(weigh(run, training, features.numpy(), rounds=2).entries()))


def _states(entries: Entries) -> tuple[Tensor, Tensor]:
    """Kept states and their posteriors, (n, k) each."""
    states, q = entries[CLASS].astype(np.int64), np.array(entries["posterior"])
    return torch.from_numpy(states), torch.from_numpy(q)


def work(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job.run, job.ranks.accelerator.device)
    training, net = parts.training, parts.net
    anchored, rows = anchored_of(job.run, training), None
    if settings.method == "paper":
        training, anchored, rows = settled_set(job.run, training, anchored)
        parts = replace(parts, training=training)
    load_net(job.run, STEP1, net)
    if settings.train.start == "anchors":
        _train_on_anchors(job, parts, anchored)
    net.reset_key()
    reference = provider(
        settings.train.reference,
        tau=settings.net.tau,
        alpha=settings.train.alpha,
        to_classifier=settings.train.bts_classifier,
        **settings.reference.model_dump(),
    )
    objective = PrototypeLearning(
        net, judge_of(job.run, training, parts.task, rows), reference, training.labels, anchored,
        parts.inputs, training.positions, job.ranks, tau=settings.net.tau, seed=settings.seed,
    )  # fmt: skip
    history = fit_step(
        job, objective, parts, training.positions, name="step 2: prototypes", seed=settings.seed + 1
    )
    if job.ranks.main:
        job.write(STEP2, net_state(net, {"prototypes": objective.prototypes}))
        job.write(HISTORIES["train"], history)
    return {"epochs": len(history), "last": history[-1] if history else {}}


def _train_on_anchors(job: Job, parts: Parts, anchored: Tensor) -> None:
    """Fresh heads, trained on the anchors alone; the encoder stays as step 1 left it."""
    settings, training, net = job.settings, parts.training, parts.net
    heads = new_heads(settings, net.encoder.dim, training, name="anchors")
    net.heads.load_state_dict(heads.state_dict())
    member = anchored if not training.multi_label else anchored.any(dim=1)
    rows = torch.nonzero(member).flatten()
    objective = WebLabels(
        net, parts.task, training.labels[rows], job.ranks, lambda_prj=settings.train.lambda_prj, freeze=True
    )
    schedule = settings.train.model_copy(update={"epochs": settings.train.anchor_epochs, "warmup_epochs": 0})
    fit_step(
        job, objective, parts, training.positions[rows.cpu().numpy()], name="heads on anchors",
        seed=settings.seed, schedule=schedule, within="anchors",  # a resumed run has them at once
    )  # fmt: skip
