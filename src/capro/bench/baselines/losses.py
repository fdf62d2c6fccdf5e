"""Systems that learn from the web labels with another loss: smoothing, mix-up, bootstrap, NCR, SCC, MoPro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.objectives import BaselineObjective, Referenced, WeightedLabels, balanced_weights
from capro.bench.baselines.work import Learned, Work
from capro.config import Settings, TrainSettings
from capro.core.references import neighbour_mean, provider, self_contained_target
from capro.data.labels import kind_of
from capro.errors import ConfigError
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import KEY_FEATURES
from capro.train.batches import Batch
from capro.train.judgement import Judge
from capro.train.objectives import rows_of
from capro.train.prototype_learning import PrototypeLearning


def vanilla(work: Work) -> Learned:
    """Step 1 itself."""
    return work.step1(), {}


def linear(work: Work) -> Learned:
    """On unaugmented features of the backbone as it was loaded; what is augmented is vanilla."""
    net = work.net()
    v = work.features(work.training.positions, net)
    classifier = work.probe(v, np.arange(len(v)), "linear probe")
    net.heads.classifier.load_state_dict(classifier.state_dict())
    return net, {}


def referenced(name: str) -> Callable[[Work], Learned]:
    """Step 1 with a reference provider in its loss."""

    def make(work: Work) -> Learned:
        settings, net = work.run.settings, work.net()
        reference = provider(name, **settings.reference.model_dump())
        weight = reference.weights(1.0)["bts"]
        work.fit(Referenced(work, net, reference=reference, weight=weight), name)
        return net, {"weight": weight}

    return make


NCR_WEIGHT = 0.3
NCR_START = 10 / 130  # part of the epochs without consistency
TINY = 1e-16  # before logarithms


def consistency(
    logits: Tensor, v: Tensor, *, k: int, temperature: float, multi_label: bool, count: float
) -> Tensor:
    """T^2 KL(n, p_T), summed over samples and divided by a count; n is learnt as well.

    Args:
        logits: (b, C).
        v: Features, (b, d).
        k: Neighbours.
        temperature: T.
        multi_label: Sigmoids instead of a softmax.
        count: Divisor.
    """
    scaled = logits / temperature
    p = scaled.sigmoid() if multi_label else scaled.softmax(dim=1)
    mean, similar = neighbour_mean(p, v, k=k)
    if multi_label:
        yes = mean * ((mean + TINY).log() - functional.logsigmoid(scaled))
        no = (1 - mean) * ((1 - mean + TINY).log() - functional.logsigmoid(-scaled))
        divergence = (yes + no).mean(dim=1)
    else:
        divergence = (mean * ((mean + TINY).log() - scaled.log_softmax(dim=1))).sum(dim=1)
    return temperature**2 * (divergence * similar).sum() / count


class NeighbourConsistent(BaselineObjective):
    """Web labels, and predictions like those of similar pictures of the batch.

    Args:
        work: What the baseline works with.
        net: Networks.
        weight: w.
        k: Neighbours.
        temperature: T.
        start: Epochs without consistency.
    """

    def __init__(
        self, work: Work, net: Siamese, *, weight: float, k: int, temperature: float, start: int
    ) -> None:
        super().__init__(work, net)
        self.weights = {"bts": weight}
        self._k, self._temperature, self._start = k, temperature, start

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y, share = rows_of(self._labels, batch.samples), self.share(batch)
        v = self.net.encoder(batch.query)
        logits = self.net.heads.classifier(v)
        terms = {"cls": self._task.cls(logits, y, share)}
        if batch.epoch >= self._start:
            terms["bts"] = consistency(
                logits,
                v,
                k=self._k,
                temperature=self._temperature,
                multi_label=kind_of(y).multi_label,
                count=share,
            )
        return terms


def ncr(work: Work) -> Learned:
    """NCR: neighbour consistency (Iscen et al., "Learning with Neighbor Consistency for Noisy Labels", CVPR 2022).

    Of the paper only the abstract could be found here; this follows the authors' released code.

    - L = (1 - w) CE(y, p) + w T^2 KL(n, p_T), w = 0.3, T = 2. p_T is the softmax of the logits by T, and n the
      mean of p_T of the 10 nearest others of the batch, weighed by the cosines of the features v, negative ones
      as 0. A sample whose prediction differs from those of similar pictures is pulled to them, and they to it:
      n has its gradient.
    - Consistency begins after 10 of 130 epochs, here after the same part (one at least); until then L is the
      cross-entropy.

    w, T and the number of neighbours are `reference.ncr_weight`, `reference.ncr_temperature` and
    `reference.neighbours`. The authors have 0.3 and 2 for all labels from the web, and 5, 10 or 100 neighbours
    by the share of noise; 10 is theirs for none and for a fifth of wrong labels. With several ranks neighbours
    are those of the rank's part of the batch. A sample without any similar other has no consistency loss.
    Several labels, which the paper does not treat: sigmoids, and the mean over classes of the divergences of
    two outcomes.

    CAPro's reference provider of the same name (`train.reference=ncr`, core/references.py) has the same mean over
    neighbours and another loss: KL(p, n) with n fixed, without T^2.
    """
    settings, net = work.run.settings, work.net()
    chosen = settings.reference
    weight = NCR_WEIGHT if chosen.ncr_weight is None else chosen.ncr_weight
    start = max(1, round(NCR_START * settings.pretrain.epochs))
    objective = NeighbourConsistent(
        work, net, weight=weight, k=chosen.neighbours, temperature=chosen.ncr_temperature, start=start
    )
    work.fit(objective, "NCR")
    return net, {"weight": weight, "start": start}


SCC_POWER, SCC_ALPHA = 2, 0.2


def scc(work: Work) -> Learned:
    """SCC: self-contained confidence (Yang et al., "Webly Supervised Image Classification with Self-Contained
    Confidence", ECCV 2020).

    Of the paper only the abstract could be found here; this follows the authors' released scripts for offline
    SCC.

    - Step 1 is their baseline. Its beliefs s about the unaugmented training pictures are computed once: the
      self-labels.
    - The confidence of a sample is c = s_y^2, the squared belief in the web label. Its target is c y + (1 - c)
      s: a label that step 1 believes counts as it is, one that it doubts gives way to the self-label.
    - Step 1's networks learn on with these targets at half of step 1's rate, without warm-up, with mix-up by
      Beta(0.2, 0.2) of inputs and targets, and with weights by which every class counts alike.

    Different: cross-entropy of softmax scores, as everywhere in the table (theirs: sigmoids, summed over
    classes); one share of mix-up for a batch (theirs: one for each sample). Several labels, which the paper
    does not treat: the confidence of each class by itself, and no weights.

    CAPro's reference provider of the same name (`train.reference=scc`, core/references.py) has the same formula with
    c = s_y and self-labels of the auxiliary classifier.
    """
    training, net = work.training, work.step1()
    s = work.believed(net, training.positions)
    targets, confidence = self_contained_target(s, training.labels, power=SCC_POWER)
    weights = balanced_weights(training.labels, len(training.classes))
    objective = WeightedLabels(work, net, targets, weights=weights, alpha=SCC_ALPHA)
    work.fit(objective, "SCC", schedule=work.second_schedule())
    return net, {"confidence": float(confidence.mean())}


SHARED_WITH_STEP2 = (
    "alpha", "gamma", "key_momentum", "lambda_ins", "lambda_pro", "prototype_momentum", "queue",
)  # fmt: skip


class MomentumPrototypes(PrototypeLearning):
    """Step 2's objective where nobody is an anchor: L_pro waits until every class had an epoch."""

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().terms(batch)
        if batch.epoch == 0:
            terms.pop("pro", None)
        return terms


def mopro_settings(settings: Settings) -> dict[str, Any]:
    """The settings of step 2 that decide it too."""
    start = settings.baselines.model_dump(include={"mopro_start"}, exclude_defaults=True)
    return {"train": settings.train.model_dump(include=set(SHARED_WITH_STEP2)), **start}


def mopro_training(settings: Settings) -> TrainSettings:
    """Step 1's schedule with MoPro's objective."""
    epochs, start = settings.pretrain.epochs, settings.baselines.mopro_start
    schedule = settings.pretrain.model_dump(exclude={"lambda_prj"})
    shared = settings.train.model_dump(include=set(SHARED_WITH_STEP2))
    return TrainSettings(
        **schedule, **shared, correct_after=max(1, round(start * epochs)), frozen_epochs=0,
        policy="mopro", reference="none", lambda_prj=0.0, lambda_bts=0.0, update_every=1,
    )  # fmt: skip


def mopro(work: Work) -> Learned:
    """MoPro: momentum prototypes (Li, Xiong and Hoi, "MoPro: Webly Supervised Learning with Momentum Prototypes",
    ICLR 2021).

    Of the paper only the abstract could be found here; this follows the authors' released training code.

    - One training from the backbone as it was loaded, without step 1. L = L_cls + w_pro L_pro + w_ins L_ins;
      there is no projection loss, no text, no anchor and no reference.
    - Prototypes begin as zero vectors. In the first epoch they become moving averages of the embeddings by web
      label, in batch order, of unit norm after each batch; L_pro begins with the second epoch.
    - From about an eighth of the epochs on (11 of 90; `baselines.mopro_start`) the pseudo-label rule decides
      with o = alpha p + (1 - alpha) r: argmax o where max o > gamma; else the web label where o_y > 1/C; else
      the sample leaves L_cls and L_pro, and polishes no prototype. It stays in L_ins.

    All of this is step 2's machinery without anchors, so no formula is written a second time.

    Left out: training the classifier again on the cleaned set, which the released code can do afterwards.
    Different: alpha, gamma, momenta, queue and weights are those of `train`, so that the rows of a table share
    them; the queue begins with real keys (theirs with random vectors). In the first batch that shows a class
    its samples weigh alike, and a class that no sample has shown yet gets nothing of r (theirs: that of a zero
    vector). With data of a few batches an eighth of the epochs is a few steps: networks that know nothing then
    decide, and may make all samples one class. With `baselines.mopro_start` they learn for longer. For several
    labels, which the MoPro paper does not treat, prototypes and rule are the per-class ones of the CAPro paper.
    """
    settings, training, net = work.run.settings, work.training, work.net()
    # a run of the method plus does without key views
    if settings.net.mode == "frozen" and not len(work.run.read(KEY_FEATURES)):
        raise ConfigError(
            "the baseline mopro compares two views of a picture, and no key views are cached",
            hint="--set method=paper",
        )
    own = mopro_training(settings)
    nobody = torch.zeros_like(training.labels, dtype=torch.bool)
    objective = MomentumPrototypes(
        net, Judge(work.task, own), provider("none"), training.labels, nobody, work.inputs(net),
        training.positions, work.ranks, tau=settings.net.tau, seed=settings.seed,
    )  # fmt: skip
    work.fit(objective, "MoPro")
    return net, {"correct_after": own.correct_after, **objective.statistics()}
