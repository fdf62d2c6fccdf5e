"""MILe: multi-label iterated learning (Rajeswar et al., "Multi-label Iterated Learning for Image Classification with
Label Ambiguity", CVPR 2022).

Of the paper only abstract and summaries could be found here; this follows the authors' released code. A picture
with one label may show several classes: predictions are binary (sigmoids), and generations of one network build the
missing labels. Two bottlenecks keep noise out: hard multi-label predictions are handed on, and a generation lasts
only some steps.

- The network learns k_1 steps from the web labels, by binary cross-entropy summed over classes, as a teacher. A
  copy of it stays behind.
- Then the same network, as a student, learns k_2 steps from the copy's pseudo-labels, the classes whose sigmoid is
  above rho = 0.5. It is the next teacher. And so on; the last student is the result.
- k_1 and k_2 are a hundredth of all steps each, 2000 of 200,000 there.

So it takes as many steps as vanilla. Different: the pseudo-labels of a sample without any class above rho are its
web label, so that no sample is labelled as nothing; and the start is that of step 1, theirs are self-supervised
weights. One label only: the paper treats pictures with one label. What is reported are softmax scores, which are in
the order of the sigmoids.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.work import Made, Work
from capro.models.siamese import Siamese
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch, BatchPlan
from capro.train.objectives import WebLabels, rows_of
from capro.train.tasks import Task

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
    found = (logits.sigmoid() > rho).to(logits)
    return torch.where(found.any(dim=1, keepdim=True), found, web.to(logits))


def binary_loss(logits: Tensor, target: Tensor, *, count: float) -> Tensor:
    """Binary cross-entropy, summed over classes, mean over samples, (b, C)."""
    losses = functional.binary_cross_entropy_with_logits(logits, target.to(logits), reduction="none")
    return losses.sum() / count


class IteratedLearning(WebLabels):
    """One network, teacher and student in turns.

    Args:
        net: Networks; what is reported.
        task: One label.
        labels: Web labels, (n,).
        ranks: The ranks.
        steps: Of an epoch.
        turn: Steps of a teacher, and of a student.
        rho: Threshold of pseudo-labels.
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *, steps: int, turn: int, rho: float
    ) -> None:
        super().__init__(net, task, labels, ranks, lambda_prj=0.0)
        self._teacher = copy.deepcopy(net).requires_grad_(False).eval()
        self._steps, self._turn, self._rho = steps, turn, rho

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        target = functional.one_hot(rows_of(self._labels, batch.samples), self._task.classes)
        turn, begun = divmod(batch.epoch * self._steps + batch.step, self._turn)
        if turn % 2:  # the student's
            if not begun:
                self._teacher.load_state_dict(self.net.state_dict())
            target = pseudo_labels(_logits(self._teacher, batch), target, rho=self._rho)
        share = len(batch.everyone) / self._ranks.count
        return {"cls": binary_loss(_logits(self.net, batch), target, count=share)}

    def state(self) -> dict[str, Tensor]:
        return {f"teacher.{name}": tensor for name, tensor in self._teacher.state_dict().items()}


def _logits(net: Siamese, batch: Batch) -> Tensor:
    logits: Tensor = net.heads.classifier(net.encoder(batch.query))
    return logits


def learn(work: Work) -> Made:
    """Turns of teacher and student by step 1's schedule."""
    settings, training, net = work.run.settings, work.training, work.net()
    steps = BatchPlan(len(training.positions), settings.pretrain.batch_size, settings.seed).steps
    turn = max(1, steps * settings.pretrain.epochs // TURNS)
    objective = IteratedLearning(net, work.task, training.labels, work.ranks, steps=steps, turn=turn, rho=RHO)
    work.fit(objective, "MILe")
    return net, {"turn": turn}
