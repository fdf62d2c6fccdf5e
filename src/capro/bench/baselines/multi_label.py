"""Systems for pictures that show more classes than their label says: MILe and MCPL."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.objectives import BaselineObjective
from capro.bench.baselines.work import Learned, Work
from capro.models.siamese import Siamese
from capro.train.batches import Batch, BatchPlan, forward_plain
from capro.train.objectives import rows_of

RHO = 0.5  # a class is handed on above this probability
TURNS = 100  # of teacher and student together


def pseudo_labels(logits: Tensor, web: Tensor, *, rho: float) -> Tensor:
    """Hard multi-label targets of the next generation, (b, C) in {0, 1}.

    Args:
        logits: The teacher's, (b, C).
        web: Web labels as rows, (b, C): for samples without any class above rho.
        rho: Threshold.

    >>> web = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> pseudo_labels(torch.tensor([[2.0, -1.0], [-9.0, -9.0]]), web, rho=0.25).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    above = (logits.sigmoid() > rho).to(logits)
    return torch.where(above.any(dim=1, keepdim=True), above, web.to(logits))


class IteratedLearning(BaselineObjective):
    """One network, teacher and student in turns.

    Args:
        work: What the baseline works with, single-label.
        net: Networks; what is reported.
        steps: Of an epoch.
        turn: Steps of a teacher, and of a student.
        rho: Threshold of pseudo-labels.
    """

    def __init__(self, work: Work, net: Siamese, *, steps: int, turn: int, rho: float) -> None:
        super().__init__(work, net)
        self._teacher = copy.deepcopy(net).requires_grad_(False).eval()
        self._steps, self._turn, self._rho = steps, turn, rho

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        target = functional.one_hot(rows_of(self._labels, batch.samples), self._task.classes)
        turn, begun = divmod(batch.epoch * self._steps + batch.step, self._turn)
        if turn % 2:  # the student's
            if not begun:
                self._teacher.load_state_dict(self.net.state_dict())
            taught = self._teacher.heads.classifier(self._teacher.encoder(batch.query))
            target = pseudo_labels(taught, target, rho=self._rho)
        logits = self.logits(batch.query)
        loss = functional.binary_cross_entropy_with_logits(logits, target.to(logits), reduction="sum")
        return {"cls": loss / self.share(batch)}  # summed over classes, mean over samples

    def state(self) -> dict[str, Tensor]:
        return {f"teacher.{name}": tensor for name, tensor in self._teacher.state_dict().items()}


def mile(work: Work) -> Learned:
    """MILe: multi-label iterated learning (Rajeswar et al., "Multi-label Iterated Learning for Image
    Classification with Label Ambiguity", CVPR 2022).

    Of the paper only abstract and summaries could be found here; this follows the authors' released code. A
    picture with one label may show several classes: predictions are binary (sigmoids), and generations of one
    network build the missing labels. Two bottlenecks keep noise out: hard multi-label predictions are handed
    on, and a generation lasts only some steps.

    - The network learns k_1 steps from the web labels, by binary cross-entropy summed over classes, as a
      teacher. A copy of it stays behind.
    - Then the same network, as a student, learns k_2 steps from the copy's pseudo-labels, the classes whose
      sigmoid is above rho = 0.5. It is the next teacher. And so on; the last student is the result.
    - k_1 and k_2 are a hundredth of all steps each, 2000 of 200,000 there.

    So it takes as many steps as vanilla. Different: the pseudo-labels of a sample without any class above rho
    are its web label, so that no sample is labelled as nothing; and the start is that of step 1, theirs are
    self-supervised weights. One label only: the paper treats pictures with one label. What is reported are
    softmax scores, which are in the order of the sigmoids.
    """
    settings, training, net = work.run.settings, work.training, work.net()
    steps = BatchPlan(len(training.positions), settings.pretrain.batch_size, settings.seed).steps
    turn = max(1, steps * settings.pretrain.epochs // TURNS)
    work.fit(IteratedLearning(work, net, steps=steps, turn=turn, rho=RHO), "MILe")
    return net, {"turn": turn}


ALPHA, BETA, GAMMA = -4.45, 5.45, 1.0  # of the normalisation: g(1) = 1, g(0.1) = 5
SURE_LOGIT = 2.0  # a logit beyond this is a label of the curriculum


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
    unknown = np.zeros(labels.shape, dtype=bool)
    for c, count in enumerate((labels > 0).sum(axis=0).tolist()):
        absent = np.flatnonzero(labels[:, c] <= 0)
        order = np.argsort(-beliefs[absent, c], kind="stable")
        unknown[absent[order[:count]], c] = True
    return unknown


class PartialLabels(BaselineObjective):
    """Partial binary cross-entropy with a curriculum.

    Args:
        work: What the baseline works with, multi-label.
        net: Networks.
        unknown: Labels that are not known, (n, C), bool.
    """

    def __init__(self, work: Work, net: Siamese, unknown: Tensor) -> None:
        super().__init__(work, net, work.training.labels.float())
        self._unknown, self._known = unknown, ~unknown
        self._inputs, self._positions = work.inputs(net), work.training.positions

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        if epoch and not resumed:
            self.net.eval()
            self._predict()
        super().begin_epoch(epoch, resumed=resumed)

    @torch.no_grad()
    def _predict(self) -> None:
        """Unknown labels that the network is sure of become known."""
        logits = forward_plain(
            self.logits, self._inputs, self._positions, width=self._task.classes, device=self._labels.device
        )
        self._labels = torch.where(self._unknown, (logits > 0).float(), self._labels)
        self._known = ~self._unknown | (logits.abs() > SURE_LOGIT)

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        target, known = rows_of(self._labels, batch.samples), rows_of(self._known, batch.samples)
        return {"cls": partial_loss(self.logits(batch.query), target, known, count=self.share(batch))}

    def state(self) -> dict[str, Tensor]:
        return {"labels": self._labels, "known": self._known}

    def statistics(self) -> dict[str, float]:
        """Share of the unknown labels that were learnt from, and of those the positive ones."""
        learnt = self._unknown & self._known
        total = max(1, int(self._unknown.sum()))
        positive = int((learnt & (self._labels > 0)).sum())
        return {"predicted": int(learnt.sum()) / total, "predicted positive": positive / total}


def mcpl(work: Work) -> Learned:
    """MCPL: multi-label classification with partial labels (Durand, Mehrasa and Mori, "Learning a Deep ConvNet for
    Multi-label Classification with Partial Labels", CVPR 2019).

    The paper's introduction could be found here; its loss and constants are as others' public code quotes them.

    - Partial binary cross-entropy: a label is positive, negative or unknown, and unknown ones have no loss. A
      sample's loss is g(p) / C times the sum over its known labels, where p is the share of them and g(p) =
      alpha p^gamma + beta with alpha = -4.45, beta = 5.45, gamma = 1: a sample with few known labels weighs
      more for each.
    - Curriculum: unknown labels are predicted and the sure ones are learnt from: those whose logit is beyond 2
      in either direction (the score threshold strategy; its value is from memory). Predictions are made again
      before each epoch but the first.

    Which labels are missing nobody says on the web: a tag that is not there is a negative or was not written.
    Ours: of each class as many labels count as unknown as are given, those that cross-validated beliefs find
    most probable among the pictures without the tag; the CAPro paper quotes that half of the true labels are
    missing in NUS-WIDE's tags.

    Left out: the graph network over classes, and the Bayesian uncertainty by dropout that chooses labels in the
    best of their strategies: our encoders have no dropout. Several labels only.
    """
    training, net = work.training, work.net()
    unknown = torch.from_numpy(unknown_labels(training.labels.cpu().numpy(), work.beliefs()))
    objective = PartialLabels(work, net, unknown.to(work.device))
    work.fit(objective, "MCPL")
    return net, objective.statistics()
