"""Score and rule, once: the fused score of a sample and what follows for its label (Eq. 6 and 7).

Step 2 applies it to every batch, the offline pass to every training row, unaugmented and in eval mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import TrainSettings
from capro.core.kept_scores import Entries, keep, numbers_only
from capro.core.label_rule import fused_score
from capro.data.labels import kind_of
from capro.models.heads import HeadOutputs
from capro.models.siamese import Siamese
from capro.train.batches import Inputs, plain_batches
from capro.train.tasks import Task


class ClassScores(NamedTuple):
    """Probabilities of every class, (b, C) each."""

    fused: Tensor  # o
    classifier: Tensor  # p
    similarity: Tensor  # r


@dataclass(frozen=True)
class Judge:
    """The label rule under the settings of step 2.

    Attributes:
        task: Single-label or multi-label.
        settings: gamma, alpha and policy.
    """

    task: Task
    settings: TrainSettings

    @property
    def protects_anchors(self) -> bool:
        """Whether anchors keep their label (policy ``capro``)."""
        return self.settings.policy == "capro"

    @torch.no_grad()
    def scores(self, out: HeadOutputs, prototypes: Tensor, rows: NDArray[np.int64]) -> ClassScores:
        """The fused score of training rows, and what it is made of."""
        del rows
        p = self.task.probabilities(out.p)
        r = self.task.similarity(out.compared, prototypes)
        return ClassScores(fused_score(p, r, alpha=self.settings.alpha), p, r)

    def decide(self, fused: Tensor, labels: Tensor, anchored: Tensor) -> tuple[Tensor, Tensor]:
        """New labels and decisions, in the shape of the labels."""
        return self.task.adjust(
            fused, labels, anchored, gamma=self.settings.gamma, protect=self.protects_anchors
        )

    def unchanged(self, labels: Tensor, anchored: Tensor) -> Tensor:
        """Decisions while the rule does not apply yet."""
        return self.task.unchanged(labels, anchored, protect=self.protects_anchors)

    def refresh(self, features: Callable[[], Tensor]) -> None:
        """Called before an epoch, with what gives the features of all training rows, (n, d_v)."""
        del features

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs of it."""
        return {}


@dataclass(frozen=True, kw_only=True)
class PosteriorJudge(Judge):
    """The method plus: the posterior of the true label decides, and is computed anew before each epoch.

    Attributes:
        states: of every training row whose posteriors are kept, (n, k); C is none of these.
        q: their posteriors, (n, k).
        posterior: from features of all training rows, (n, d_v), to new states and q.
        sure: least posterior of a decision (``plus.ask_below``), one label.
    """

    states: Tensor
    q: Tensor
    posterior: Callable[[Tensor], tuple[Tensor, Tensor]]
    sure: float

    def scores(self, out: HeadOutputs, prototypes: Tensor, rows: NDArray[np.int64]) -> ClassScores:
        p, r = self.task.probabilities(out.p), self.task.similarity(out.compared, prototypes)
        at, classes = torch.from_numpy(rows).to(self.q.device), self.task.classes
        q = self.q.new_zeros(len(at), classes + 1).scatter_(1, self.states[at], self.q[at])
        return ClassScores(q[:, :classes], p.detach(), r.detach())

    def decide(self, fused: Tensor, labels: Tensor, anchored: Tensor) -> tuple[Tensor, Tensor]:
        return self.task.decide(fused, labels, anchored, sure=self.sure)[:2]

    def refresh(self, features: Callable[[], Tensor]) -> None:
        for old, new in zip((self.states, self.q), self.posterior(features().float().cpu()), strict=True):
            old.copy_(new)

    def state(self) -> dict[str, Tensor]:
        return {"states": self.states, "posterior": self.q}


@dataclass(frozen=True)
class Judged:
    """What the rule made of every training row, and the scores that it looked at."""

    labels: NDArray[np.int64]  # (n,) or (n, C); -1: out
    decisions: NDArray[np.int64]  # same shape, numbers of Task.names
    scores: Entries  # fused (o), classifier (p) and similarity (r; method plus: text), (n, k)
    none: NDArray[np.float32] | None = None  # posterior of none of these, (n,), method plus with one label
    ask: NDArray[np.bool_] | None = None  # where a person should be asked, same shape as labels, method plus


@torch.no_grad()
def judge_all(
    judge: Judge,
    net: Siamese,
    prototypes: Tensor,
    labels: Tensor,
    anchored: Tensor,
    inputs: Inputs,
    positions: NDArray[np.int64],
    rows: slice = slice(None),
    *,
    name: Callable[[int], str] = "row {}".format,
) -> Judged:
    """The offline pass: apply the rule to every training row, or to a block of them.

    Args:
        judge: The rule.
        net: After step 2.
        prototypes: After step 2.
        labels: Web labels, (n,) or (n, C).
        anchored: Same shape; protected under the policy ``capro``.
        inputs: Where images or features come from.
        positions: Manifest position of each row.
        rows: The block. Values do not depend on it where it begins at a multiple of EVAL_BATCH.
        name: From a training row to its id, for the message where a score is nan.
    """
    net.eval()
    parts: list[tuple[NDArray[Any], ...]] = []
    for block, x in plain_batches(inputs, positions[rows], device=labels.device):
        numbers = block + (rows.start or 0)
        at = torch.from_numpy(numbers).to(labels.device)
        scores = judge.scores(net(x).query, prototypes, numbers)
        fused = scores.fused.cpu().numpy()
        numbers_only(fused, place="fused score (Eq. 6)", name=name, begin=int(numbers[0]))
        new, decisions = judge.decide(scores.fused, labels[at], anchored[at])
        arrays = {name: part.cpu().numpy() for name, part in scores._asdict().items()}
        own = kind_of(labels).membership(labels[at].cpu().numpy(), len(prototypes))
        entries = keep(arrays, own, multi_label=kind_of(labels).multi_label)
        parts.append((new.cpu().numpy(), decisions.cpu().numpy(), entries))
    return Judged(*(np.concatenate(column) for column in zip(*parts, strict=True)))
