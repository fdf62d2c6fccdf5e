"""MCPL: multi-label classification with partial labels (Durand, Mehrasa and Mori, "Learning a Deep ConvNet for
Multi-label Classification with Partial Labels", CVPR 2019).

The paper's introduction could be found here; its loss and constants are as others' public code quotes them.

- Partial binary cross-entropy: a label is positive, negative or unknown, and unknown ones have no loss. A sample's
  loss is g(p) / C times the sum over its known labels, where p is the share of them and g(p) = alpha p^gamma + beta
  with alpha = -4.45, beta = 5.45, gamma = 1: a sample with few known labels weighs more for each.
- Curriculum: unknown labels are predicted and the sure ones are learnt from: those whose logit is beyond 2 in
  either direction (the score threshold strategy; its value is from memory). Predictions are made again before each
  epoch but the first.

Which labels are missing nobody says on the web: a tag that is not there is a negative or was not written. Ours: of
each class as many labels count as unknown as are given, those that cross-validated beliefs find most probable among
the pictures without the tag; the CAPro paper quotes that half of the true labels are missing in NUS-WIDE's tags.

Left out: the graph network over classes, and the Bayesian uncertainty by dropout that chooses labels in the best of
their strategies: our encoders have no dropout.
Several labels only.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.work import Made, Work
from capro.models.siamese import Siamese
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch, Inputs, forward_plain
from capro.train.objectives import WebLabels, rows_of
from capro.train.tasks import Task

ALPHA, BETA, GAMMA = -4.45, 5.45, 1.0  # of the normalisation: g(1) = 1, g(0.1) = 5
SURE = 2.0  # a logit beyond this is a label of the curriculum


def partial_loss(logits: Tensor, target: Tensor, known: Tensor, *, count: float) -> Tensor:
    """Partial binary cross-entropy: sum over samples of g(p_i) / C times the losses of known labels, over count.

    Args:
        logits: (b, C).
        target: (b, C) in {0, 1}; any value where unknown.
        known: (b, C), bool.
        count: Samples of the batch, over all ranks per rank.
    """
    losses = functional.binary_cross_entropy_with_logits(logits, target.to(logits), reduction="none")
    share = known.float().mean(dim=1)  # p, (b,)
    scale = torch.where(share > 0, ALPHA * share.clamp(min=1e-9) ** GAMMA + BETA, 0.0)
    return (scale * (losses * known).mean(dim=1)).sum() / count


def unknown_labels(labels: NDArray[np.int64], beliefs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Of each class the most probable absent labels, as many as there are given ones, (n, C).

    >>> labels = np.array([[1], [0], [0], [0]])
    >>> unknown_labels(labels, np.array([[0.9], [0.2], [0.7], [0.1]], np.float32))[:, 0].tolist()
    [False, False, True, False]
    """
    found = np.zeros(labels.shape, dtype=bool)
    for c, given in enumerate((labels > 0).sum(axis=0).tolist()):
        absent = np.flatnonzero(labels[:, c] <= 0)
        order = np.argsort(-beliefs[absent, c], kind="stable")
        found[absent[order[:given]], c] = True
    return found


class PartialLabels(WebLabels):
    """Partial binary cross-entropy with a curriculum.

    Args:
        net: Networks.
        task: Several labels.
        labels: Web labels, (n, C).
        unknown: Labels that are not known, (n, C), bool.
        ranks: The ranks.
        inputs: For predictions without augmentation.
        positions: Manifest position of each training row.
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, unknown: Tensor, ranks: Ranks, inputs: Inputs,
        positions: NDArray[np.int64],
    ) -> None:  # fmt: skip
        super().__init__(net, task, labels.float(), ranks, lambda_prj=0.0)
        self._unknown, self._known = unknown, ~unknown
        self._inputs, self._positions = inputs, positions

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        if epoch and not resumed:
            self.net.eval()
            self._predict()
        super().begin_epoch(epoch, resumed=resumed)

    @torch.no_grad()
    def _predict(self) -> None:
        """Unknown labels that the network is sure of become known."""
        logits = forward_plain(
            lambda x: self.net.heads.classifier(self.net.encoder(x)), self._inputs, self._positions,
            width=self._task.classes, device=self._labels.device,
        )  # fmt: skip
        self._labels = torch.where(self._unknown, (logits > 0).float(), self._labels)
        self._known = ~self._unknown | (logits.abs() > SURE)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.net.heads.classifier(self.net.encoder(batch.query))
        target, known = rows_of(self._labels, batch.samples), rows_of(self._known, batch.samples)
        count = len(batch.everyone) / self._ranks.count
        return {"cls": partial_loss(logits, target, known, count=count)}

    def state(self) -> dict[str, Tensor]:
        return {"labels": self._labels, "known": self._known}

    def statistics(self) -> dict[str, float]:
        """Share of the unknown labels that were learnt from, and of those the positive ones."""
        learnt = self._unknown & self._known
        total = max(1, int(self._unknown.sum()))
        positive = int((learnt & (self._labels > 0)).sum())
        return {"predicted": int(learnt.sum()) / total, "predicted positive": positive / total}


def learn(work: Work) -> Made:
    """Mark what may be missing, then train by the curriculum."""
    training, net = work.training, work.net()
    unknown = torch.from_numpy(unknown_labels(training.labels.cpu().numpy(), work.beliefs()))
    objective = PartialLabels(
        net, work.task, training.labels, unknown.to(work.device), work.ranks, work.inputs(net),
        training.positions,
    )  # fmt: skip
    work.fit(objective, "MCPL")
    return net, objective.statistics()
