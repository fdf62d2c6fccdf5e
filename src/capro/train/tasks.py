"""What differs between one label and several, behind one set of names.

``labels`` are (n,) int64 for one label (-1: out) and (n, C) int64 in {0, 1} for several (a row of
-1: out); ``anchored`` has the same shape, bool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from capro import labels as rule
from capro import losses, prototypes
from capro.losses import Count
from capro.nets.heads import HeadOutputs, Heads


class Task(Protocol):
    """Losses, prototypes and label rule of a task."""

    classes: int
    names: tuple[str, ...]  # of the decisions, by their number

    def probabilities(self, logits: Tensor) -> Tensor: ...
    def out(self, labels: Tensor) -> Tensor: ...
    def cls(self, logits: Tensor, labels: Tensor, count: Count) -> Tensor: ...
    def pro(self, out: HeadOutputs, prototypes: Tensor, labels: Tensor, count: Count) -> Tensor: ...
    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]: ...
    def similarity(self, z: Tensor, z_c: Tensor | None, prototypes: Tensor) -> Tensor: ...
    def sums(self, z: Tensor, z_c: Tensor | None, labels: Tensor, anchored: Tensor) -> Tensor: ...
    def polish(
        self, prototypes: Tensor, embeddings: Tensor, labels: Tensor, momentum: float
    ) -> Tensor: ...
    def embeddings(self, z: Tensor, z_c: Tensor | None) -> Tensor: ...
    def key_similarity(self, keys: Tensor, heads: Heads, prototypes: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SingleLabel:
    """One class per sample."""

    classes: int
    tau: float
    names: tuple[str, ...] = ("anchor", "keep", "relabel", "drop")

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def out(self, labels: Tensor) -> Tensor:
        return labels < 0

    def cls(self, logits: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.classification_loss(logits, labels, count=count)

    def pro(self, out: HeadOutputs, prototypes: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.prototype_loss(out.z, prototypes, labels, tau=self.tau, count=count)

    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]:
        return rule.adjust(o, labels, anchored, gamma=gamma, protect_anchors=protect)

    def similarity(self, z: Tensor, z_c: Tensor | None, prototypes_: Tensor) -> Tensor:
        del z_c
        return prototypes.similarity(z, prototypes_, tau=self.tau)

    def sums(self, z: Tensor, z_c: Tensor | None, labels: Tensor, anchored: Tensor) -> Tensor:
        del z_c
        return prototypes.class_sums(
            z, torch.where(anchored, labels, rule.NULL), n_classes=self.classes
        )

    def embeddings(self, z: Tensor, z_c: Tensor | None) -> Tensor:
        del z_c
        return z

    def polish(
        self, prototypes_: Tensor, embeddings: Tensor, labels: Tensor, momentum: float
    ) -> Tensor:
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

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def out(self, labels: Tensor) -> Tensor:
        return (labels < 0).any(dim=1)

    def cls(self, logits: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.classification_loss_binary(
            logits, labels, pos_weight=self.pos_weight.to(logits), count=count
        )

    def pro(self, out: HeadOutputs, prototypes_: Tensor, labels: Tensor, count: Count) -> Tensor:
        return losses.prototype_loss_binary(
            _subspaces(out.z_c), prototypes_, labels, tau=self.tau,
            pos_weight=self.pos_weight.to(out.z), count=count,
        )  # fmt: skip

    def adjust(
        self, o: Tensor, labels: Tensor, anchored: Tensor, *, gamma: float, protect: bool
    ) -> tuple[Tensor, Tensor]:
        return rule.adjust_binary(o, labels, anchored, gamma=gamma, protect_anchors=protect)

    def similarity(self, z: Tensor, z_c: Tensor | None, prototypes_: Tensor) -> Tensor:
        del z
        return prototypes.similarity_binary(_subspaces(z_c), prototypes_, tau=self.tau)

    def sums(self, z: Tensor, z_c: Tensor | None, labels: Tensor, anchored: Tensor) -> Tensor:
        del z
        return prototypes.class_sums_binary(_subspaces(z_c), labels, anchored)

    def embeddings(self, z: Tensor, z_c: Tensor | None) -> Tensor:
        del z
        return _subspaces(z_c)

    def polish(
        self, prototypes_: Tensor, embeddings: Tensor, labels: Tensor, momentum: float
    ) -> Tensor:
        return prototypes.polish_binary(prototypes_, embeddings, labels, momentum=momentum)

    def key_similarity(self, keys: Tensor, heads: Heads, prototypes_: Tensor) -> Tensor:
        if heads.subspaces is None:
            raise ValueError("multi-label heads without subspaces")
        return prototypes.similarity_binary(heads.subspaces(keys), prototypes_, tau=self.tau)


def _subspaces(z_c: Tensor | None) -> Tensor:
    if z_c is None:
        raise ValueError("multi-label heads without subspaces")
    return z_c
