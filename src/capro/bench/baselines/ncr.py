"""NCR: neighbour consistency (Iscen et al., "Learning with Neighbor Consistency for Noisy Labels", CVPR 2022).

Of the paper only the abstract could be found here; this follows the authors' released code.

- L = (1 - w) CE(y, p) + w T^2 KL(n, p_T), w = 0.3, T = 2. p_T is the softmax of the logits by T, and n the mean of
  p_T of the 10 nearest others of the batch, weighed by the cosines of the features v, negative ones as 0. A sample
  whose prediction differs from those of similar pictures is pulled to them, and they to it: n has its gradient.
- Consistency begins after 10 of 130 epochs, here after the same part (one at least); until then L is the
  cross-entropy.

w, T and the number of neighbours are `reference.ncr_weight`, `reference.ncr_temperature` and
`reference.neighbours`. The authors have 0.3 and 2 for all labels from the web, and 5, 10 or 100 neighbours by the
share of noise; 10 is theirs for none and for a fifth of wrong labels. With several ranks neighbours are those of
the rank's part of the batch. A sample without any similar other has no consistency loss. Several labels, which the
paper does not treat: sigmoids, and the mean over classes of the divergences of two outcomes. The reference provider
of the same name (`train.reference=ncr`) has KL(p, n) with n fixed, without T^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.work import Made, Work
from capro.config import Settings
from capro.models.siamese import Siamese
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch
from capro.train.objectives import WebLabels, rows_of
from capro.train.tasks import Task

WEIGHT = 0.3
START = 10 / 130  # part of the epochs without consistency
TINY = 1e-16  # before logarithms


def consistency(
    logits: Tensor, v: Tensor, *, k: int, temperature: float, several: bool, count: float
) -> Tensor:
    """T^2 KL(n, p_T), summed over samples and divided by a count.

    Args:
        logits: (b, C).
        v: Features, (b, d).
        k: Neighbours.
        temperature: T.
        several: Sigmoids instead of a softmax.
        count: Divisor.
    """
    if len(v) < 2:
        return logits.sum() * 0.0
    unit = functional.normalize(v, dim=1)
    own = torch.eye(len(v), dtype=torch.bool, device=v.device)
    best, where = (unit @ unit.T).masked_fill(own, -2.0).topk(min(k, len(v) - 1), dim=1)
    best = best.clamp(min=0)
    mass = best.sum(dim=1)  # (b,)
    share = best / torch.where(mass > 0, mass, 1.0)[:, None]  # (b, k)
    scaled = logits / temperature
    p = scaled.sigmoid() if several else scaled.softmax(dim=1)
    mean = (share[:, :, None] * p[where]).sum(dim=1)  # (b, k, C) -> (b, C)
    if several:
        yes = mean * ((mean + TINY).log() - functional.logsigmoid(scaled))
        no = (1 - mean) * ((1 - mean + TINY).log() - functional.logsigmoid(-scaled))
        divergence = (yes + no).mean(dim=1)
    else:
        divergence = (mean * ((mean + TINY).log() - scaled.log_softmax(dim=1))).sum(dim=1)
    return temperature**2 * (divergence * (mass > 0)).sum() / count


class NeighbourConsistent(WebLabels):
    """Web labels, and predictions like those of similar pictures of the batch.

    Args:
        net: Networks.
        task: One label or several.
        labels: Web labels.
        ranks: The ranks.
        weight: w.
        k: Neighbours.
        temperature: T.
        start: Epochs without consistency.
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *,
        weight: float, k: int, temperature: float, start: int,
    ) -> None:  # fmt: skip
        super().__init__(net, task, labels, ranks, lambda_prj=0.0)
        self.weights = {"bts": weight}
        self._k, self._temperature, self._start = k, temperature, start

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        v = self.net.encoder(batch.query)
        logits = self.net.heads.classifier(v)
        share = len(batch.everyone) / self._ranks.count
        found = {"cls": self._task.cls(logits, y, share)}
        if batch.epoch >= self._start:
            found["bts"] = consistency(
                logits, v, k=self._k, temperature=self._temperature, several=y.ndim == 2, count=share
            )
        return found


def own_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide it."""
    names = {"neighbours", "ncr_temperature", "ncr_weight"}
    return {"reference": settings.reference.model_dump(include=names)}


def learn(work: Work) -> Made:
    """Step 1's schedule with both losses."""
    settings, net = work.run.settings, work.net()
    chosen = settings.reference
    weight = WEIGHT if chosen.ncr_weight is None else chosen.ncr_weight
    start = max(1, round(START * settings.pretrain.epochs))
    objective = NeighbourConsistent(
        net, work.task, work.training.labels, work.ranks,
        weight=weight, k=chosen.neighbours, temperature=chosen.ncr_temperature, start=start,
    )  # fmt: skip
    work.fit(objective, "NCR")
    return net, {"weight": weight, "start": start}
