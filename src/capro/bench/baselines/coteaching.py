"""Co-teaching (Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels",
NeurIPS 2018), and small-loss selection, its half.

Of the paper only the abstract could be found here; this follows the authors' released training code.

- Two networks see the same batches. In each, the samples of small loss are probably labelled right, and the other
  network learns from them alone: each filters for the other, so that a mistake is not fed back to who made it.
- The share of a batch that is left out grows linearly from 0 to the share of wrong labels, within 10 of 200 epochs,
  here the same part of the epochs (one at least): left out too early, whole classes never start to be learnt.
- The first network is the result.

`smallloss` is the same with one network, which chooses for itself.

Different: the share of wrong labels, which the authors know, is estimated by confident counting from
cross-validated beliefs (several labels: a fifth). Step 1's projection loss stays, its part of the labels on the
chosen samples. Optimiser and schedule are step 1's, theirs Adam, with another momentum later on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from capro.bench.baselines.objectives import sample_losses
from capro.bench.baselines.work import Made, Work
from capro.core.losses import reconstruction_loss
from capro.models.siamese import Siamese
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch
from capro.train.objectives import WebLabels, rows_of
from capro.train.tasks import Task

RAMP = 10 / 200  # part of the epochs until the whole share is left out


class SmallLoss(WebLabels):
    """Learn from the samples of a batch whose loss is small; with a second network, from those of the other.

    The share that is left out grows linearly from 0 to ``noise``.

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


def smallest(losses: Tensor, left_out: float) -> Tensor:
    """Rows of the smallest losses; at least one stays.

    >>> smallest(torch.tensor([3.0, 1.0, 2.0, 9.0]), 0.5).tolist()
    [1, 2]
    """
    kept = max(1, round(len(losses) * (1 - left_out)))
    return torch.argsort(losses, stable=True)[:kept]


def learn_from_small_losses(nets: int) -> Callable[[Work], Made]:
    """Samples of small loss, chosen by one network or by two for each other (Co-teaching).

    The two see the same batches in the same order. An encoder that starts from random weights starts from others
    in the second network; with pretrained weights, or a frozen encoder, only their heads differ.
    """

    def make(work: Work) -> Made:
        settings, noise = work.run.settings, work.noise()
        net = work.net()
        objective = SmallLoss(
            net, work.net("second") if nets == 2 else None,
            work.training.task(settings.net.tau), work.training.labels, work.ranks,
            lambda_prj=settings.pretrain.lambda_prj, noise=noise,
            ramp=max(1, round(RAMP * settings.pretrain.epochs)),
        )  # fmt: skip
        work.fit(objective, "co-teaching" if nets == 2 else "small-loss selection")
        return net, {"noise": noise}

    return make
