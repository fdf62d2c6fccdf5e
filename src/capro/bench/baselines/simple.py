"""Baselines of a few lines: another loss, another choice of samples, a vote."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from capro.bench.baselines import selection
from capro.bench.baselines.objectives import Referenced, SmallLoss
from capro.bench.baselines.work import Made, Work
from capro.method.references import provider
from capro.train.web_labels import WebLabels

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


def referenced(name: str, unset: float = 1.0) -> Callable[[Work], Made]:
    """Step 1 with a reference provider in its loss.

    Args:
        name: Of the provider.
        unset: Its weight where its settings give none.
    """

    def make(work: Work) -> Made:
        settings, net = work.run.settings, work.net()
        reference = provider(name, **settings.reference.model_dump())
        weight = reference.weights(unset)["bts"]
        objective = Referenced(
            net, work.training.task(settings.net.tau), work.training.labels, work.ranks,
            lambda_prj=settings.pretrain.lambda_prj, weight=weight, seed=settings.seed,
            reference=reference,
            teacher=work.step1() if name == "scc" else None,
        )  # fmt: skip
        work.fit(objective, name)
        return net, {"weight": weight}

    return make


def small_loss(nets: int) -> Callable[[Work], Made]:
    """Samples of small loss, chosen by one network or by two for each other (Co-teaching).

    The two see the same batches in the same order. An encoder that starts from random weights starts from others
    in the second network; with pretrained weights, or a frozen encoder, only their heads differ.
    """

    def make(work: Work) -> Made:
        settings, noise = work.run.settings, work.noise()
        net = work.net()
        objective = SmallLoss(
            net, work.net("second") if nets == 2 else None,
            work.training.task(settings.net.tau), work.training.labels, work.ranks,
            lambda_prj=settings.pretrain.lambda_prj, noise=noise,
            ramp=max(1, settings.pretrain.epochs // 2),
        )  # fmt: skip
        work.fit(objective, "co-teaching" if nets == 2 else "small-loss selection")
        return net, {"noise": noise}

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
