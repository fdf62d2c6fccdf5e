"""What differs between one label and several, behind one set of names.

``labels`` are (n,) int64 for one label (-1: out) and (n, C) int64 in {0, 1} for several (a row of
-1: out); ``anchored`` has the same shape, bool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from capro.method import label_rule as rule
from capro.method import losses, prototypes
from capro.method.losses import Count
from capro.nets.heads import HeadOutputs, Heads


class Task(Protocol):
    """Losses, prototypes and label rule of a task."""

    @property
    def classes(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...  # of the decisions, by their number
    def balanced(self, labels: Tensor, balance: float | None) -> Task: ...
    def probabilities(self, logits: Tensor) -> Tensor: ...
    def out(self, labels: Tensor) -> Tensor: ...
    def cls(self, logits: Tensor, labels: Tensor, count: Count) -> Tensor: ...
    def prj(self, out: HeadOutputs, labels: Tensor, count: Count, samples: Count) -> Tensor: ...
    def pro(self, out: HeadOutputs, prototypes: Tensor, labels: Tensor, count: Count) -> Tensor: ...
    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]: ...
    def unchanged(self, labels: Tensor, anchored: Tensor, *, protect: bool) -> Tensor: ...
    def shares(self, decisions: Tensor, before: Tensor, after: Tensor) -> dict[str, float]: ...
    def similarity(self, z: Tensor, z_c: Tensor | None, prototypes: Tensor) -> Tensor: ...
    def sums(self, z: Tensor, z_c: Tensor | None, labels: Tensor, anchored: Tensor) -> Tensor: ...
    def polish(self, prototypes: Tensor, embeddings: Tensor, labels: Tensor, momentum: float) -> Tensor: ...
    def embeddings(self, z: Tensor, z_c: Tensor | None) -> Tensor: ...
    def key_similarity(self, keys: Tensor, heads: Heads, prototypes: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SingleLabel:
    """One class per sample."""

    classes: int
    tau: float
    offsets: Tensor | None = None  # (C,), added to the logits of L_cls
    names: tuple[str, ...] = ("anchor", "keep", "relabel", "drop")

    def balanced(self, labels: Tensor, balance: float | None) -> SingleLabel:
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

    def pro(self, out: HeadOutputs, prototypes: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.prototype_loss(out.z, prototypes, labels, tau=self.tau, count=count)

    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]:
        return rule.adjust(o, labels, anchored, gamma=gamma, protect_anchors=protect)

    def unchanged(self, labels: Tensor, anchored: Tensor, *, protect: bool) -> Tensor:
        """Decisions where the rule does not work yet."""
        kept = torch.where(labels < 0, int(rule.Decision.DROP), int(rule.Decision.KEEP))
        return torch.where(anchored, int(rule.Decision.ANCHOR), kept) if protect else kept

    def shares(self, decisions: Tensor, before: Tensor, after: Tensor) -> dict[str, float]:
        """Share of samples by decision."""
        del before, after
        counts = torch.bincount(decisions, minlength=len(self.names)).tolist()
        return {name: n / len(decisions) for name, n in zip(self.names, counts, strict=True)}

    def similarity(self, z: Tensor, z_c: Tensor | None, prototypes_: Tensor) -> Tensor:
        del z_c
        return prototypes.similarity(z, prototypes_, tau=self.tau)

    def sums(self, z: Tensor, z_c: Tensor | None, labels: Tensor, anchored: Tensor) -> Tensor:
        del z_c
        return prototypes.class_sums(z, torch.where(anchored, labels, rule.NULL), n_classes=self.classes)

    def embeddings(self, z: Tensor, z_c: Tensor | None) -> Tensor:
        del z_c
        return z

    def polish(self, prototypes_: Tensor, embeddings: Tensor, labels: Tensor, momentum: float) -> Tensor:
        return prototypes.polish(prototypes_, embeddings, labels, momentum=momentum)

    def key_similarity(self, keys: Tensor, heads: Heads, prototypes_: Tensor) -> Tensor:
        del heads
        return prototypes.similarity(keys, prototypes_, tau=self.tau)


@dataclass(frozen=True)
class MultiLabel:
    """Any number of classes per sample; every class has a subspace and two prototypes."""

    classes: int
    tau: float
    pos_weight: Tensor
    names: tuple[str, ...] = ("keep", "add", "remove")

    def balanced(self, labels: Tensor, balance: float | None) -> MultiLabel:
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
        return losses.classification_loss_binary(
            logits, labels, pos_weight=self.pos_weight.to(logits), count=count
        )

    def prj(self, out: HeadOutputs, labels: Tensor, count: Count, samples: Count) -> Tensor:
        return losses.projection_loss_binary(
            out.v_rec, out.v, out.q, labels,
            pos_weight=self.pos_weight.to(out.q), count=count, samples=samples,
        )  # fmt: skip

    def pro(self, out: HeadOutputs, prototypes_: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.prototype_loss_binary(
            _subspaces(out.z_c), prototypes_, labels, tau=self.tau,
            pos_weight=self.pos_weight.to(out.z), count=count,
        )  # fmt: skip

    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]:
        return rule.adjust_binary(o, labels, anchored, gamma=gamma, protect_anchors=protect)

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
        found = {name: n / total for name, n in zip(self.names, counts, strict=True)}
        return found | {"drop": int(self.out(after).sum()) / len(after)}

    def similarity(self, z: Tensor, z_c: Tensor | None, prototypes_: Tensor) -> Tensor:
        del z
        return prototypes.similarity_binary(_subspaces(z_c), prototypes_, tau=self.tau)

    def sums(self, z: Tensor, z_c: Tensor | None, labels: Tensor, anchored: Tensor) -> Tensor:
        del z
        return prototypes.class_sums_binary(_subspaces(z_c), labels, anchored)

    def embeddings(self, z: Tensor, z_c: Tensor | None) -> Tensor:
        del z
        return _subspaces(z_c)

    def polish(self, prototypes_: Tensor, embeddings: Tensor, labels: Tensor, momentum: float) -> Tensor:
        return prototypes.polish_binary(prototypes_, embeddings, labels, momentum=momentum)

    def key_similarity(self, keys: Tensor, heads: Heads, prototypes_: Tensor) -> Tensor:
        if heads.subspaces is None:
            raise ValueError("multi-label heads without subspaces")
        return prototypes.similarity_binary(heads.subspaces(keys), prototypes_, tau=self.tau)


def _subspaces(z_c: Tensor | None) -> Tensor:
    if z_c is None:
        raise ValueError("multi-label heads without subspaces")
    return z_c
