"""Objectives of baselines for the one loop: web labels with a reference, weighted, and small-loss selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from capro.method.losses import classification_loss, reconstruction_loss
from capro.method.references import Outputs, Provider
from capro.nets.siamese import Siamese
from capro.run.fingerprints import seed_for
from capro.run.ranks import Ranks
from capro.train.batches import Batch
from capro.train.objective import rows_of
from capro.train.tasks import Task
from capro.train.web_labels import WebLabels


class Referenced(WebLabels):
    """Step 1 with a reference provider: (1 - weight) L_cls + weight L_ref + lambda_prj L_prj.

    Args:
        net: Networks.
        task: One label or several.
        labels: Web labels.
        ranks: The ranks.
        lambda_prj: Weight of L_prj.
        reference: Who provides references; it must not need the dictionary.
        weight: Of the reference; 1 is the objective of the providers' own papers, but for NCR.
        teacher: Whose beliefs are self-labels (SCC); None: the auxiliary classifier's.
        seed: Of the run.
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *, lambda_prj: float,
        reference: Provider, weight: float, seed: int, teacher: Siamese | None = None,
    ) -> None:  # fmt: skip
        super().__init__(net, task, labels, ranks, lambda_prj=lambda_prj)
        self.weights = {"prj": lambda_prj, "bts": weight}
        self._reference, self._teacher = reference, teacher
        self._seed = seed_for(seed, "baseline mixup")
        if teacher is not None:
            teacher.eval().requires_grad_(False)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        out = self.net(batch.query).query
        share = len(batch.everyone) / self._ranks.count
        extra: dict[str, Any] = {}
        if self._reference.mixes:
            generator = torch.Generator(y.device)
            generator.manual_seed(seed_for(self._seed, batch.epoch, batch.step, self._ranks.index))
            mixture = self._reference.mix(len(batch.query), generator)
            if mixture is not None:
                mixed = self.net.encoder(mixture.inputs(batch.query))
                extra |= {"mixture": mixture, "p_mixed_logits": self.net.heads.classifier(mixed)}
        if self._teacher is not None:
            with torch.no_grad():
                extra["self_logits"] = self._teacher(batch.query).query.p
        outputs = Outputs(
            p_logits=out.p, q_logits=out.q, v=out.v, z=out.z, labels=y,
            pos_weight=getattr(self._task, "pos_weight", None), **extra,
        )  # fmt: skip
        return {
            "cls": self._task.cls(out.p, y, share),
            "prj": self._task.prj(out, y, share, share),
            "bts": self._reference.loss(outputs, count=share).loss,
        }


class SmallLoss(WebLabels):
    """Learn from the samples of a batch whose loss is small: they are probably right.

    With a second network this is Co-teaching (Han et al. 2018): each network learns from the samples
    that the other one finds easy. The share that is left out grows linearly from 0 to ``noise``: left
    out too early, whole classes never start to be learnt.

    Args:
        net: Networks; what is reported.
        other: A second one with another start, or None.
        task: One label or several.
        labels: Web labels.
        ranks: The ranks.
        lambda_prj: Weight of L_prj.
        noise: Share of wrong labels, as estimated.
        ramp: Epochs until that share is reached.
    """

    def __init__(
        self, net: Siamese, other: Siamese | None, task: Task, labels: Tensor, ranks: Ranks, *,
        lambda_prj: float, noise: float, ramp: int,
    ) -> None:  # fmt: skip
        super().__init__(net, task, labels, ranks, lambda_prj=lambda_prj)
        self._other, self._noise, self._ramp = other, noise, max(1, ramp)

    def parameters(self) -> list[nn.Parameter]:
        more = [] if self._other is None else self._other.encoder.parameters()
        heads = [] if self._other is None else self._other.heads.parameters()
        return [*super().parameters(), *more, *heads]

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        super().begin_epoch(epoch, resumed=resumed)
        if self._other is not None:
            self._other.train()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        left_out = self._noise * min(1.0, batch.epoch / self._ramp)
        nets = [self.net] if self._other is None else [self.net, self._other]
        outs = [net(batch.query).query for net in nets]
        easy = [smallest(sample_losses(self._task, out.p, y), left_out) for out in outs]
        easy.reverse()  # each learns from the other's choice; alone, from its own
        share = len(batch.everyone) / self._ranks.count
        cls, prj = torch.zeros(()), torch.zeros(())
        for out, rows in zip(outs, easy, strict=True):
            count = float(len(rows))
            cls = cls + self._task.cls(out.p[rows], y[rows], count)
            prj = prj + reconstruction_loss(out.v_rec, out.v, count=share)
            prj = prj + self._task.cls(out.q[rows], y[rows], count)
        return {"cls": cls, "prj": prj}

    def state(self) -> dict[str, Tensor]:
        if self._other is None:
            return {}
        return {f"other.{name}": tensor for name, tensor in self._other.state_dict().items()}


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


def sample_losses(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each sample, (b, C) -> (b,), without gradient."""
    logits = logits.detach()
    if labels.ndim == 1:
        return functional.cross_entropy(logits, labels, reduction="none")
    weight = getattr(task, "pos_weight", None)
    return functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits), pos_weight=weight, reduction="none"
    ).mean(dim=1)


def smallest(losses: Tensor, left_out: float) -> Tensor:
    """Rows of the smallest losses; at least one stays.

    >>> smallest(torch.tensor([3.0, 1.0, 2.0, 9.0]), 0.5).tolist()
    [1, 2]
    """
    kept = max(1, round(len(losses) * (1 - left_out)))
    return torch.argsort(losses, stable=True)[:kept]
