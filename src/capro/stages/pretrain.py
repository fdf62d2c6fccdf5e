"""Step 1: train on the web labels; the result is the vanilla baseline."""

from __future__ import annotations

from typing import Any

from capro.run.artefacts import HISTORIES, STEP1
from capro.run.stage import Job
from capro.stages.features import say_encoder
from capro.stages.training import fit_step, parts_of
from capro.train.setup import encoder_cost, net_state
from capro.train.web_labels import WebLabels


def work(job: Job) -> dict[str, Any]:
    settings, parts = job.settings, parts_of(job.run, job.ranks.accelerator.device)
    training, net = parts.training, parts.net
    found: dict[str, Any] = {}
    if settings.net.mode == "full":
        found["encoder"] = encoder_cost(net.encoder, settings.views.size or net.encoder.size)
        say_encoder(job, net.encoder, found["encoder"])
    objective = WebLabels(
        net, parts.task, training.labels, job.ranks, lambda_prj=settings.pretrain.lambda_prj
    )
    history = fit_step(
        job, objective, parts, training.positions, name="step 1: web labels", seed=settings.seed
    )
    if job.ranks.main:
        job.write(STEP1, net_state(net))
        job.write(HISTORIES["pretrain"], history)
    return {"epochs": len(history), **found}
