"""The three trainings: step 1 on web labels, step 2 with prototypes, step 3 the classifier alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.config import FinetuneSettings, Schedule, Settings
from capro.core.kept_scores import CLASS, Entries, KeptScores
from capro.core.linear import NO_CALIBRATION, Calibration, calibrate
from capro.core.references import provider
from capro.models.backbones import Backbone, FeatureBackbone
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import (
    CLEANED_LABELS,
    FUSED_SCORES,
    HISTORIES,
    POSTERIOR,
    SOFT_LABELS,
    STEP1,
    STEP2,
    STEP3,
)
from capro.pipeline.checksums import seed_for
from capro.pipeline.ranks import tracked
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.stages.decided import decided_set
from capro.stages.features import say_encoder
from capro.stages.plan import classifier_steps
from capro.stages.posterior import fit_posterior
from capro.train.batches import FeatureInputs, Inputs, forward_plain
from capro.train.checkpoints import Checkpoints
from capro.train.judgement import Judge, PosteriorJudge
from capro.train.loop import Training
from capro.train.objectives import ClassifierOnly, Objective, WebLabels
from capro.train.prototype_learning import PrototypeLearning
from capro.train.setup import (
    TrainingSet,
    Weights,
    anchored_of,
    encoder_cost,
    inputs_of,
    load_net,
    net_state,
    new_heads,
    new_net,
    training_set,
)
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
    inputs: Inputs,
    positions: NDArray[np.int64],
    schedule: Schedule,
    *,
    name: str,
    seed: int,
    ids: list[str],
    within: str | None = "",
) -> list[dict[str, float]]:
    """Train an objective in a stage, see `Training`; returns the history.

    Args:
        job: The stage at work.
        objective: What to train.
        inputs: Where views come from.
        positions: Manifest position of each training row.
        schedule: Epochs, batch size, learning rate.
        name: For messages.
        seed: Of the order of samples.
        ids: Sample ids by manifest position, for messages.
        within: Name of a training within the stage: its checkpoints stay apart, and no tracker sees it.
            A training of seconds, None, has no checkpoints.
    """
    settings = job.settings
    with tracked(job.ranks, job.stage.name, settings, wanted=within == "") as log:
        return Training(
            objective,
            inputs,
            positions,
            schedule,
            name=name,
            seed=seed,
            ranks=job.ranks,
            ids=ids,
            checkpoints=None if within is None else Checkpoints(job.folder / "checkpoints" / within, job.key),
            bar=job.bar,
            checkpoint_minutes=settings.log.checkpoint_minutes,
            log=log,
        ).fit()


def pretrain(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job.run, job.ranks.accelerator.device)
    training, net = parts.training, parts.net
    cost: dict[str, Any] = {}
    if settings.net.mode == "full":
        cost["encoder"] = encoder_cost(net.encoder, settings.views.size or net.encoder.size)
        say_encoder(job, net.encoder, cost["encoder"])
    objective = WebLabels(
        net, parts.task, training.labels, job.ranks, lambda_prj=settings.pretrain.lambda_prj
    )
    history = fit_step(
        job, objective, parts.inputs, training.positions, settings.pretrain,
        name="step 1: web labels", seed=settings.seed, ids=training.ids,
    )  # fmt: skip
    if job.ranks.main:
        job.write(STEP1, net_state(net))
        job.write(HISTORIES["pretrain"], history)
    return {"epochs": len(history), **cost}


def judge_of(run: Run, training: TrainingSet, task: Task) -> Judge:
    """The label rule of a run for training rows: the posterior, or the fused score."""
    settings = run.settings.train
    if run.settings.by_posterior:
        states, q = (part.to(training.labels.device) for part in _states(run.read(POSTERIOR)))
        return PosteriorJudge(
            task, settings, states=states, q=q,
            posterior=lambda v: _states(_weighed_again(run, training, v)),
            sure=run.settings.plus.ask_below,
        )  # fmt: skip
    return Judge(task, settings)


def _weighed_again(run: Run, training: TrainingSet, features: Tensor) -> Entries:
    """The posterior of features that step 2 has learnt, (n, d_v)."""
    return np.concatenate(list(fit_posterior(run, training, features.numpy(), rounds=2).entries()))


def _states(entries: Entries) -> tuple[Tensor, Tensor]:
    """Kept states and their posteriors, (n, k) each."""
    states, q = entries[CLASS].astype(np.int64), np.array(entries["posterior"])
    return torch.from_numpy(states), torch.from_numpy(q)


def train(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job.run, job.ranks.accelerator.device)
    training, net = parts.training, parts.net
    anchored = anchored_of(job.run, training)
    if not settings.by_posterior:
        training, anchored = decided_set(job.run, training, anchored)
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
        net, judge_of(job.run, training, parts.task), reference, training.labels, anchored,
        parts.inputs, training.positions, job.ranks, tau=settings.net.tau, seed=settings.seed,
    )  # fmt: skip
    history = fit_step(
        job, objective, parts.inputs, training.positions, settings.train,
        name="step 2: prototypes", seed=settings.seed + 1, ids=training.ids,
    )  # fmt: skip
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
        job, objective, parts.inputs, training.positions[rows.cpu().numpy()], schedule, name="heads on anchors",
        seed=settings.seed, ids=training.ids, within="anchors",  # a resumed run has them at once
    )  # fmt: skip


FOLDS = 5
ENOUGH = 20_000  # held-out samples; with more, later folds are left out
MOST = 200_000  # samples of refits: their features are in memory


def held_out_logits(
    job: Job,
    training: TrainingSet,
    labels: Tensor,
    schedules: Sequence[Schedule],
    *,
    model: Weights,
    name: str,
    folds: int = FOLDS,
) -> tuple[NDArray[np.int64], Tensor]:
    """Logits of training samples by classifiers that have not seen them: rows, (m,), and logits, (m, C).

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
    settings, ranks, device = job.settings, job.ranks, job.ranks.accelerator.device
    rng = np.random.default_rng(seed_for(settings.seed, "held out"))
    task = training.task(settings.net.tau)
    rows = rng.permutation(np.flatnonzero(~task.out(labels).numpy()))[:MOST]
    if not training.multi_label:  # dealt out class by class, so that every fold has its share of each
        rows = rows[np.argsort(labels.numpy()[rows], kind="stable")]
    fold = np.arange(len(rows)) % FOLDS
    inputs, positions, encoder = _features(job, training, model, rows)
    parts, judged = [torch.zeros(0, len(training.classes))], [np.zeros(0, dtype=np.int64)]
    for number in range(folds):
        held, seen = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if sum(len(each) for each in judged) >= ENOUGH or not len(held) or not len(seen):
            break
        heads = new_heads(settings, encoder.dim, training, name="held out")
        net = Siamese(encoder, heads).to(device)
        own = labels[torch.from_numpy(rows[seen])].to(device)
        for step, schedule in enumerate(schedules):
            objective = (
                ClassifierOnly.by(schedule, net, task, own, ranks, inputs, positions[seen])
                if isinstance(schedule, FinetuneSettings)
                else ClassifierOnly(net, task, own, ranks)
            )
            fit_step(
                job, objective, inputs, positions[seen], schedule,
                name=name, seed=settings.seed + step, ids=training.ids, within=None,
            )  # fmt: skip
            objective.finish()
        net.eval()
        classifier = nn.Sequential(net.encoder, net.heads.classifier)
        logits = forward_plain(
            classifier, inputs, positions[held], width=len(training.classes), device=device
        )
        parts.append(logits.cpu())
        judged.append(rows[held])
    return np.concatenate(judged), torch.cat(parts)


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


def targets_of(run: Run, training: TrainingSet) -> Tensor:
    """What step 3 learns, (n,) or (n, C): the corrected labels.

    Multi-label with the method plus: what the words say of every class, since a missing label is no certain
    negative. What the picture says is left out: the classifier would learn its own beliefs.
    """
    soft = run.settings.by_posterior and training.multi_label
    return torch.from_numpy(np.array(run.read(SOFT_LABELS if soft else CLEANED_LABELS)))


def calibration_of(run: Run) -> Calibration:
    """How step 3 calibrated its classifier."""
    fitted = run.result("finetune").get("calibration")
    return Calibration(**fitted) if fitted else NO_CALIBRATION


def finetune(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job.run, job.ranks.accelerator.device)
    training, net = parts.training, parts.net
    extra = load_net(job.run, _before(settings), net)
    labels = targets_of(job.run, training)
    rows = torch.nonzero(~parts.task.out(labels)).flatten()
    positions = training.positions[rows.numpy()]
    own = labels[rows].to(training.labels.device)
    objective = ClassifierOnly.by(settings.finetune, net, parts.task, own, job.ranks, parts.inputs, positions)
    history = fit_step(
        job, objective, parts.inputs, positions, settings.finetune,
        name="step 3: classifier", seed=settings.seed + 2, ids=training.ids,
    )  # fmt: skip
    objective.finish()
    result: dict[str, Any] = {"epochs": len(history), "samples": len(rows)}
    if settings.by_posterior:
        calibration = _calibration(job, training, labels)
        with torch.no_grad():
            net.heads.classifier.weight.mul_(calibration.scale)
            net.heads.classifier.bias.copy_(calibration(net.heads.classifier.bias))
        result["calibration"] = calibration._asdict()
    if job.ranks.main:
        job.write(STEP3, net_state(net, extra))
        job.write(HISTORIES["finetune"], history)
    return result


def _calibration(job: Job, training: TrainingSet, labels: Tensor) -> Calibration:
    """Fitted to the posterior of samples that the classifier has not seen."""
    settings = job.settings
    schedules = [getattr(settings, name) for name in classifier_steps(settings)]
    rows, logits = held_out_logits(
        job, training, labels, schedules, model=_before(settings), name="calibration", folds=1
    )
    q = KeptScores(job.read(FUSED_SCORES), "fused", len(training.classes))[rows]
    return calibrate(logits, torch.from_numpy(q), multi_label=training.multi_label)


def _before(settings: Settings) -> Any:
    """The model that step 3 starts from."""
    return STEP2 if settings.has_step2 else STEP1
