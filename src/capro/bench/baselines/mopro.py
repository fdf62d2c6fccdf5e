"""MoPro: momentum prototypes (Li, Xiong and Hoi, "MoPro: Webly Supervised Learning with Momentum
Prototypes", ICLR 2021).

Of the paper only the abstract could be found here; this follows the authors' released training code.

- One training from the backbone as it was loaded, without step 1. L = L_cls + w_pro L_pro + w_ins L_ins;
  there is no projection loss, no text, no anchor and no reference.
- Prototypes begin as zero vectors. In the first epoch they become moving averages of the embeddings by
  web label, in batch order, of unit norm after each batch; L_pro begins with the second epoch.
- From about an eighth of the epochs on (11 of 90; `baselines.mopro_start`) the pseudo-label rule decides with
  o = alpha p + (1 - alpha) r: argmax o where max o > gamma; else the web label where o_y > 1/C; else the
  sample leaves L_cls and L_pro, and polishes no prototype. It stays in L_ins.

All of this is step 2's machinery without anchors, so no formula is written a second time.

Left out: training the classifier again on the cleaned set, which the released code can do afterwards.
Different: alpha, gamma, momenta, queue and weights are those of `train`, so that the rows of a table share
them; the queue begins with real keys (theirs with random vectors). In the first batch that shows a class its
samples weigh alike, and a class that no sample has shown yet gets nothing of r (theirs: that of a zero vector).
With data of a few batches an eighth of the epochs is a few steps: networks that know nothing then decide, and
may make all samples one class. With `baselines.mopro_start` they learn for longer.
For several labels, which the MoPro paper does not treat, prototypes and rule are the per-class ones of
the CAPro paper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from capro.bench.baselines.work import Made, Work
from capro.config import Settings, TrainSettings
from capro.core.references import provider
from capro.train.batches import Batch
from capro.train.judgement import Judge
from capro.train.prototype_learning import PrototypeLearning

SHARED = (
    "alpha", "gamma", "key_momentum", "lambda_ins", "lambda_pro", "prototype_momentum", "queue",
)  # fmt: skip


class MomentumPrototypes(PrototypeLearning):
    """Step 2's objective where nobody is an anchor: L_pro waits until every class had an epoch."""

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        found = super().terms(batch)
        if batch.epoch == 0:
            found.pop("pro", None)
        return found


def own_settings(settings: Settings) -> dict[str, Any]:
    """The settings of step 2 that decide it too."""
    start = settings.baselines.model_dump(include={"mopro_start"}, exclude_defaults=True)
    return {"train": settings.train.model_dump(include=set(SHARED)), **start}


def training_settings(settings: Settings) -> TrainSettings:
    """Step 1's schedule with MoPro's objective."""
    epochs, start = settings.pretrain.epochs, settings.baselines.mopro_start
    schedule = settings.pretrain.model_dump(exclude={"lambda_prj"})
    shared = settings.train.model_dump(include=set(SHARED))
    return TrainSettings(
        **schedule, **shared, correct_after=max(1, round(start * epochs)), frozen_epochs=0,
        policy="mopro", reference="none", lambda_prj=0.0, lambda_bts=0.0, text_weight=0.0, update_every=1,
    )  # fmt: skip


def learn(work: Work) -> Made:
    """Train from scratch by the rule above."""
    settings, training, net = work.run.settings, work.training, work.net()
    work.need_key_views("mopro")
    own = training_settings(settings)
    nobody = torch.zeros_like(training.labels, dtype=torch.bool)
    objective = MomentumPrototypes(
        net, Judge(work.task, own), provider("none"), training.labels, nobody, work.inputs(net),
        training.positions, work.ranks, tau=settings.net.tau, seed=settings.seed,
    )  # fmt: skip
    work.fit(objective, "MoPro")
    return net, {"correct_after": own.correct_after, **objective.statistics()}
