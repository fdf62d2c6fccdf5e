"""Losses and label rules of single-label and multi-label training, behind one set of names.

``labels`` are (n,) int64 (-1: dropped), multi-label (n, C) int64 in {0, 1} (a row of -1: dropped);
``anchored`` has the same shape, bool. ``e`` are the embeddings that are compared with prototypes
(`HeadOutputs.compared`): z, (n, d_p); multi-label z_c, (n, C, d_p).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from capro.core import label_rule as rule
from capro.core import losses, prototypes
from capro.core.losses import Count
from capro.models.heads import HeadOutputs


@dataclass(frozen=True)
class SingleLabelTask:
    """One class per sample."""

    classes: int
    tau: float
    offsets: Tensor | None = None  # (C,), added to the logits of L_cls
    names: tuple[str, ...] = ("anchor", "keep", "relabel", "drop")

    def balanced(self, labels: Tensor, balance: float | None) -> SingleLabelTask:
        """The task with an L_cls that makes up for classes that are rare in ``labels``; None: as it is."""
        if balance is None:
            return self
        counts = torch.bincount(labels[~self.out(labels)], minlength=self.classes)
        return replace(self, offsets=losses.class_offsets(counts, balance=balance))

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def out(self, labels: Tensor) -> Tensor:
        return labels < 0

    def cls(self, logits: Tensor, labels: Tensor, count: Count) -> Tensor:
        if self.offsets is not None:
            logits = logits.float() + self.offsets.to(logits.device)
        return losses.classification_loss(logits, labels, count=count)

    def prj(self, out: HeadOutputs, labels: Tensor, count: Count, samples: Count) -> Tensor:
        return losses.projection_loss(out.v_rec, out.v, out.q, labels, count=count, samples=samples)

    def pro(self, out: HeadOutputs, prototypes_: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.prototype_loss(out.z, prototypes_, labels, tau=self.tau, count=count)

    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]:
        return rule.adjust(o, labels, anchored, gamma=gamma, protect_anchors=protect)

    def decide(self, q: Tensor, labels: Tensor, anchored: Tensor, *, sure: float) -> rule.CorrectedLabels:
        """What follows from the posterior of the classes, (n, C); none of these has the rest."""
        none = (1 - q.sum(dim=1, keepdim=True)).clamp(min=0)
        return rule.decide(torch.cat([q, none], dim=1), labels, anchored, sure=sure)

    def unchanged(self, labels: Tensor, anchored: Tensor, *, protect: bool) -> Tensor:
        """Decisions where the rule does not work yet."""
        kept = torch.where(labels < 0, int(rule.LabelDecision.DROP), int(rule.LabelDecision.KEEP))
        return torch.where(anchored, int(rule.LabelDecision.ANCHOR), kept) if protect else kept

    def shares(self, decisions: Tensor, before: Tensor, after: Tensor) -> dict[str, float]:
        """Share of samples by decision."""
        del before, after
        counts = torch.bincount(decisions, minlength=len(self.names)).tolist()
        return {name: n / len(decisions) for name, n in zip(self.names, counts, strict=True)}

    def similarity(self, e: Tensor, prototypes_: Tensor) -> Tensor:
        return prototypes.similarity(e, prototypes_, tau=self.tau)

    def sums(self, e: Tensor, labels: Tensor, anchored: Tensor) -> Tensor:
        return prototypes.class_sums(e, torch.where(anchored, labels, rule.NULL), n_classes=self.classes)

    def polish(self, prototypes_: Tensor, e: Tensor, labels: Tensor, momentum: float) -> Tensor:
        return prototypes.polish(prototypes_, e, labels, momentum=momentum)


@dataclass(frozen=True)
class MultiLabelTask:
    """Any number of classes per sample; every class has a subspace and two prototypes."""

    classes: int
    tau: float
    pos_weight: Tensor
    names: tuple[str, ...] = ("keep", "add", "remove")

    def balanced(self, labels: Tensor, balance: float | None) -> MultiLabelTask:
        """The task with another power in pos_weight, by ``labels``; None leaves it as it is."""
        if balance is None:
            return self
        clean = labels[~self.out(labels)]
        weight = losses.positive_weights(clean.sum(dim=0), len(clean), power=balance)
        return replace(self, pos_weight=weight)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def out(self, labels: Tensor) -> Tensor:
        return (labels < 0).any(dim=1)

    def cls(self, logits: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.classification_loss_multi_label(
            logits, labels, pos_weight=self.pos_weight.to(logits), count=count
        )

    def prj(self, out: HeadOutputs, labels: Tensor, count: Count, samples: Count) -> Tensor:
        return losses.reconstruction_loss(out.v_rec, out.v, count=samples) + self.cls(out.q, labels, count)

    def pro(self, out: HeadOutputs, prototypes_: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.prototype_loss_multi_label(
            out.compared, prototypes_, labels, tau=self.tau,
            pos_weight=self.pos_weight.to(out.z), count=count,
        )  # fmt: skip

    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]:
        return rule.adjust_multi_label(o, labels, anchored, gamma=gamma, protect_anchors=protect)

    def decide(self, q: Tensor, labels: Tensor, anchored: Tensor, *, sure: float) -> rule.CorrectedLabels:
        """What follows from the posterior of every (sample, class), (n, C)."""
        del anchored, sure
        return rule.decide_multi_label(q, labels)

    def unchanged(self, labels: Tensor, anchored: Tensor, *, protect: bool) -> Tensor:
        """Decisions where the rule does not work yet."""
        del anchored, protect
        return torch.full_like(labels, int(rule.PairDecision.KEEP))

    def shares(self, decisions: Tensor, before: Tensor, after: Tensor) -> dict[str, float]:
        """Share of labels by decision, and `drop`, the share of samples that are out.

        Labels are the (sample, class) pairs that carry one before or after: of all pairs nearly
        every one is a class that nobody claims.
        """
        carried = decisions[(before > 0) | (after > 0)]
        counts = torch.bincount(carried, minlength=len(self.names)).tolist()
        total = max(1, len(carried))
        shares = {name: n / total for name, n in zip(self.names, counts, strict=True)}
        return shares | {"drop": int(self.out(after).sum()) / len(after)}

    def similarity(self, e: Tensor, prototypes_: Tensor) -> Tensor:
        return prototypes.similarity_multi_label(e, prototypes_, tau=self.tau)

    def sums(self, e: Tensor, labels: Tensor, anchored: Tensor) -> Tensor:
        return prototypes.class_sums_multi_label(e, labels, anchored)

    def polish(self, prototypes_: Tensor, e: Tensor, labels: Tensor, momentum: float) -> Tensor:
        return prototypes.polish_multi_label(prototypes_, e, labels, momentum=momentum)


Task = SingleLabelTask | MultiLabelTask
