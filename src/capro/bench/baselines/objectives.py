"""Objectives that several baselines share: web labels with a reference, weighted, and soft labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from capro.core.losses import classification_loss, classification_loss_binary
from capro.core.references import Mixup, Outputs, Provider
from capro.models.siamese import Siamese
from capro.pipeline.checksums import seed_for
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch
from capro.train.objectives import WebLabels, mixture_of, rows_of
from capro.train.tasks import Task


class Referenced(WebLabels):
    """Step 1 with a reference provider: (1 - weight) L_cls + weight L_ref + lambda_prj L_prj.

    Args:
        net: Networks.
        task: One label or several.
        labels: Web labels.
        ranks: The ranks.
        lambda_prj: Weight of L_prj.
        reference: Who provides references; it must not need the dictionary.
        weight: Of the reference; 1 is the objective of the providers' own papers.
        seed: Of the run.
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *, lambda_prj: float,
        reference: Provider, weight: float, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(net, task, labels, ranks, lambda_prj=lambda_prj)
        self.weights = {"prj": lambda_prj, "bts": weight}
        self._reference, self._seed = reference, seed_for(seed, "baseline mixup")

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        out = self.net(batch.query).query
        share = len(batch.everyone) / self._ranks.count
        extra: dict[str, Any] = {}
        if self._reference.mixes:
            mixture = mixture_of(self._reference, batch, self._ranks, self._seed)
            if mixture is not None:
                mixed = self.net.encoder(mixture.inputs(batch.query))
                extra |= {"mixture": mixture, "p_mixed_logits": self.net.heads.classifier(mixed)}
        outputs = Outputs(
            p_logits=out.p, q_logits=out.q, v=out.v, z=out.z, labels=y,
            pos_weight=getattr(self._task, "pos_weight", None), **extra,
        )  # fmt: skip
        return {
            "cls": self._task.cls(out.p, y, share),
            "prj": self._task.prj(out, y, share, share),
            "bts": self._reference.loss(outputs, count=share).loss,
        }


class WeightedLabels(WebLabels):
    """Cross-entropy on web labels in which samples count more or less, one label: mean of w_i L_cls,i.

    Args:
        net: Networks.
        task: One label.
        labels: Web labels.
        ranks: The ranks.
        weigh: From a batch and its samples' losses, (b,), to their weights, (b,).
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *,
        weigh: Callable[[Batch, Tensor], Tensor],
    ) -> None:  # fmt: skip
        super().__init__(net, task, labels, ranks, lambda_prj=0.0)
        self._weigh = weigh

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        logits = self.net.heads.classifier(self.net.encoder(batch.query))
        weights = self._weigh(batch, sample_losses(self._task, logits, y))
        share = len(batch.everyone) / self._ranks.count
        return {"cls": classification_loss(logits, y, weight=weights, count=share)}


class SoftLabels(WebLabels):
    """Cross-entropy with soft labels in which samples count more or less: mean of w_i CE(t_i, p_i).

    Args:
        net: Networks.
        task: One label or several.
        targets: t, one label: distributions; several: probabilities. (n, C).
        weights: w, (n,).
        ranks: The ranks.
        alpha: Inputs and targets of a batch are mixed by Beta(alpha, alpha); None: they are not.
        seed: Of the run.
    """

    def __init__(
        self, net: Siamese, task: Task, targets: Tensor, weights: Tensor, ranks: Ranks, *,
        seed: int, alpha: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(net, task, targets, ranks, lambda_prj=0.0)
        self._weights, self._seed = weights, seed_for(seed, "baseline mixup")
        self._mixing = Provider() if alpha is None else Mixup(mixup_alpha=alpha)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        x, target = batch.query, rows_of(self._labels, batch.samples)
        weight = rows_of(self._weights, batch.samples)
        mixture = mixture_of(self._mixing, batch, self._ranks, self._seed)
        if mixture is not None:
            x, target = mixture.inputs(x), mixture.inputs(target)
        logits = self.net.heads.classifier(self.net.encoder(x))
        share = len(batch.everyone) / self._ranks.count
        pos_weight = getattr(self._task, "pos_weight", None)
        if pos_weight is None:
            return {"cls": classification_loss(logits, target, weight=weight, count=share)}
        loss = classification_loss_binary(logits, target, pos_weight=pos_weight, weight=weight, count=share)
        return {"cls": loss}


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights by which every class counts alike, of mean 1, (n,) -> (n,); with several labels, (n, C), all are 1.

    >>> balanced_weights(torch.tensor([0, 0, 0, 1]), 3).tolist()
    [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 2.0]
    """
    if labels.ndim == 2:
        return torch.ones(len(labels), device=labels.device)
    weights = 1 / torch.bincount(labels, minlength=classes)[labels]
    return weights / weights.mean()


def sample_losses(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each sample, (b, C) -> (b,), without gradient."""
    logits = logits.detach()
    if labels.ndim == 1:
        return functional.cross_entropy(logits, labels, reduction="none")
    weight = getattr(task, "pos_weight", None)
    return functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits), pos_weight=weight, reduction="none"
    ).mean(dim=1)
