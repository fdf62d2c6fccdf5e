"""MILe: multi-label iterated learning (Rajeswar et al., "Multi-label Iterated Learning for Image Classification with
Label Ambiguity", CVPR 2022).

Of the paper only abstract and summaries could be found here, and its code is not in the stores that were searched: a
picture with one label may show several classes. Generations of teacher and student networks with binary predictions
(sigmoids) build the missing labels, and two bottlenecks keep noise out: hard multi-label predictions are handed on, and
each generation lasts only some steps. What follows is from memory of the paper where the abstract is silent:

- A generation: the teacher begins as a copy of the student and learns k_t steps from the web labels, by binary
  cross-entropy over all classes. Then the student learns k_s steps from the teacher's pseudo-labels, the classes whose
  sigmoid is above rho.
- The last student is the result.

rho is 0.25 (from memory), and twice chance at least: with four classes 0.25 is chance, and labels would spread from
generation to generation. k_t and k_s are ours: a generation is one epoch, half of it the teacher's. Both networks
together take as many steps as vanilla, so each takes half of them. Different: the pseudo-labels of a sample without any
class above rho are its web label, so that no sample is labelled as nothing. Losses are summed over classes, so
that the rate of step 1 fits.
One label only: the paper treats pictures with one label. What is reported are softmax scores, which are in the order of
the sigmoids.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.work import Made, Work
from capro.nets.siamese import Siamese
from capro.run.ranks import Ranks
from capro.train.batches import Batch, BatchPlan
from capro.train.objective import rows_of
from capro.train.tasks import Task
from capro.train.web_labels import WebLabels

RHO = 0.25  # a class is handed on above this probability, where that is twice chance


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
    """Teacher and student take turns within each epoch.

    Args:
        student: Networks; what is reported.
        task: One label.
        labels: Web labels, (n,).
        ranks: The ranks.
        steps: Of an epoch: the first half is the teacher's.
        rho: Threshold of pseudo-labels.
    """

    def __init__(
        self, student: Siamese, task: Task, labels: Tensor, ranks: Ranks, *, steps: int, rho: float
    ) -> None:
        super().__init__(student, task, labels, ranks, lambda_prj=0.0)
        self._teacher, self._half, self._rho = copy.deepcopy(student), max(1, steps // 2), rho

    def parameters(self) -> list[nn.Parameter]:
        teacher = self._teacher
        return [*super().parameters(), *teacher.encoder.parameters(), *teacher.heads.parameters()]

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        super().begin_epoch(epoch, resumed=resumed)
        if not resumed:
            self._teacher.load_state_dict(self.net.state_dict())

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        web = functional.one_hot(rows_of(self._labels, batch.samples), self._task.classes)
        share = len(batch.everyone) / self._ranks.count
        teaching = batch.step < self._half
        self._teacher.train(teaching)
        self.net.train(not teaching)
        if teaching:
            return {"cls": binary_loss(_logits(self._teacher, batch), web, count=share)}
        with torch.no_grad():
            target = pseudo_labels(_logits(self._teacher, batch), web, rho=self._rho)
        return {"cls": binary_loss(_logits(self.net, batch), target, count=share)}

    def state(self) -> dict[str, Tensor]:
        return {f"teacher.{name}": tensor for name, tensor in self._teacher.state_dict().items()}


def _logits(net: Siamese, batch: Batch) -> Tensor:
    logits: Tensor = net.heads.classifier(net.encoder(batch.query))
    return logits


def learn(work: Work) -> Made:
    """Generations of a teacher and a student by step 1's schedule."""
    settings, training, net = work.run.settings, work.training, work.net()
    plan = BatchPlan(len(training.positions), settings.pretrain.batch_size, settings.seed)
    rho = max(RHO, 2 / len(training.classes))
    objective = IteratedLearning(net, work.task, training.labels, work.ranks, steps=plan.steps, rho=rho)
    work.fit(objective, "MILe")
    return net, {"generations": settings.pretrain.epochs, "rho": rho}
