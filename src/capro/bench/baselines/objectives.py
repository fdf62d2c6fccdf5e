"""Objectives that baselines share: web labels with a reference, weighted or soft labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.work import Work
from capro.core.references import Mixup, Outputs, Provider
from capro.data.labels import kind_of
from capro.models.siamese import Siamese
from capro.pipeline.checksums import seed_for
from capro.train.batches import Batch
from capro.train.objectives import WebLabels, mixture_of, rows_of
from capro.train.tasks import Task


class BaselineObjective(WebLabels):
    """Web labels in the hands of a baseline: its terms are the subclass's.

    Args:
        work: What the baseline works with: task, ranks, and the labels where no others are given.
        net: Networks.
        labels: What is learnt, a row for each training row.
        lambda_prj: Weight of L_prj.
    """

    def __init__(
        self, work: Work, net: Siamese, labels: Tensor | None = None, *, lambda_prj: float = 0.0
    ) -> None:
        chosen = work.training.labels if labels is None else labels
        super().__init__(net, work.task, chosen, work.ranks, lambda_prj=lambda_prj)
        self._mixup_seed = seed_for(work.run.settings.seed, "baseline mixup")

    def share(self, batch: Batch) -> float:
        """Samples of a batch per rank: the divisor of loss terms."""
        return len(batch.everyone) / self._ranks.count

    def logits(self, x: Tensor) -> Tensor:
        """Of the classifier, (b, ...) -> (b, C)."""
        logits: Tensor = self.net.heads.classifier(self.net.encoder(x))
        return logits


class Referenced(BaselineObjective):
    """Step 1 with a reference provider: (1 - weight) L_cls + weight L_ref + lambda_prj L_prj.

    Args:
        work: What the baseline works with.
        net: Networks.
        reference: Who provides references; it must not need the dictionary.
        weight: Of the reference; 1 is the objective of the providers' own papers.
    """

    def __init__(self, work: Work, net: Siamese, *, reference: Provider, weight: float) -> None:
        super().__init__(work, net)
        self.weights = {"prj": work.run.settings.pretrain.lambda_prj, "bts": weight}
        self._reference = reference

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y, share = rows_of(self._labels, batch.samples), self.share(batch)
        out = self.net(batch.query).query
        mixture = mixture_of(self._reference, batch, self._ranks, self._mixup_seed)
        mixed = None if mixture is None else self.logits(mixture.inputs(batch.query))
        outputs = Outputs(
            p_logits=out.p, q_logits=out.q, v=out.v, z=out.z, labels=y, mixture=mixture, p_mixed_logits=mixed,
            pos_weight=getattr(self._task, "pos_weight", None),
        )  # fmt: skip
        return {
            "cls": self._task.cls(out.p, y, share),
            "prj": self._task.prj(out, y, share, share),
            "bts": self._reference.loss(outputs, count=share).loss,
        }


class WeightedLabels(BaselineObjective):
    """Cross-entropy in which samples count more or less: mean of w_i CE(t_i, p_i).

    Args:
        work: What the baseline works with.
        net: Networks.
        targets: t, single-label: distributions; multi-label: probabilities. (n, C). The web labels if unset.
        weights: w, (n,); or from a batch and its samples' losses, (b,), to their weights, (b,).
        alpha: Inputs and targets of a batch are mixed by Beta(alpha, alpha); None: they are not.
    """

    def __init__(
        self, work: Work, net: Siamese, targets: Tensor | None = None, *,
        weights: Tensor | Callable[[Batch, Tensor], Tensor], alpha: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(work, net, targets)
        self._sample_weights = weights
        self._mixing = Provider() if alpha is None else Mixup(mixup_alpha=alpha)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        x, target = batch.query, rows_of(self._labels, batch.samples)
        mixture = mixture_of(self._mixing, batch, self._ranks, self._mixup_seed)
        if mixture is not None:
            x, target = mixture.inputs(x), mixture.inputs(target)
        losses = sample_losses(self._task, self.logits(x), target)
        if isinstance(self._sample_weights, Tensor):
            weights = rows_of(self._sample_weights, batch.samples)
        else:
            weights = self._sample_weights(batch, losses.detach())
        return {"cls": (weights * losses).sum() / self.share(batch)}


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights by which every class counts alike, of mean 1, (n,) -> (n,); multi-label, (n, C): all are 1.

    >>> balanced_weights(torch.tensor([0, 0, 0, 1]), 3).tolist()
    [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 2.0]
    """
    if kind_of(labels).multi_label:
        return torch.ones(len(labels), device=labels.device)
    weights = 1 / torch.bincount(labels, minlength=classes)[labels]
    return weights / weights.mean()


def sample_losses(task: Task, logits: Tensor, target: Tensor) -> Tensor:
    """Loss of each sample, (b, C) -> (b,); classes, (b,), or distributions, (b, C); multi-label: probabilities."""
    pos_weight = getattr(task, "pos_weight", None)
    if pos_weight is None:
        return functional.cross_entropy(logits, target, reduction="none")
    return functional.binary_cross_entropy_with_logits(
        logits, target.to(logits), pos_weight=pos_weight, reduction="none"
    ).mean(dim=1)
