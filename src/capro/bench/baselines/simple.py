"""Baselines of a few lines: another loss, another choice of samples, a vote."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from capro.bench.baselines import selection
from capro.bench.baselines.objectives import Referenced
from capro.bench.baselines.work import Made, Work
from capro.core.references import provider
from capro.train.objectives import WebLabels

VOTERS = 20  # neighbours of the k-NN vote


def vanilla(work: Work) -> Made:
    """Step 1 itself."""
    return work.step1(), {}


def linear(work: Work) -> Made:
    """On unaugmented features of the backbone as it was loaded; what is augmented is vanilla."""
    net = work.net()
    v = work.features(work.training.positions, net)
    classifier = work.probe(v, np.arange(len(v)), "linear probe")
    net.heads.classifier.load_state_dict(classifier.state_dict())
    return net, {}


def referenced(name: str) -> Callable[[Work], Made]:
    """Step 1 with a reference provider in its loss."""

    def make(work: Work) -> Made:
        settings, net = work.run.settings, work.net()
        reference = provider(name, **settings.reference.model_dump())
        weight = reference.weights(1.0)["bts"]
        objective = Referenced(
            net, work.training.task(settings.net.tau), work.training.labels, work.ranks,
            lambda_prj=settings.pretrain.lambda_prj, weight=weight, seed=settings.seed, reference=reference,
        )  # fmt: skip
        work.fit(objective, name)
        return net, {"weight": weight}

    return make


def cleanlab(work: Work) -> Made:
    """Step 1 without the samples that confident learning calls mislabelled."""
    labels = work.training.labels
    issues = selection.label_issues(work.beliefs(), labels.cpu().numpy())
    kept = np.flatnonzero(~issues)
    settings, net = work.run.settings, work.net()
    objective = WebLabels(
        net, work.training.task(settings.net.tau), labels[torch.from_numpy(kept)], work.ranks,
        lambda_prj=settings.pretrain.lambda_prj,
    )  # fmt: skip
    work.fit(objective, "cleanlab", kept)
    return net, {"removed": int(issues.sum())}


def knn(_: Work) -> Made:
    """No networks: neighbours vote."""
    return None, {"k": VOTERS}
