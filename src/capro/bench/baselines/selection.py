"""Systems that choose the samples they learn from, and the vote of neighbours."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.bench.baselines.objectives import BaselineObjective, sample_losses
from capro.bench.baselines.work import Learned, Work
from capro.core.losses import reconstruction_loss
from capro.data.labels import kind_of
from capro.errors import ConfigError
from capro.graph.neighbors import unit_rows
from capro.models.siamese import Siamese
from capro.train.batches import Batch
from capro.train.objectives import WebLabels, rows_of

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

VOTERS = 20  # neighbours of the k-NN vote
RAMP = 10 / 200  # part of the epochs until Co-teaching leaves out its whole share


def label_issues(probabilities: Floats, labels: Labels) -> NDArray[np.bool_]:
    """Samples that cleanlab's ``find_label_issues`` calls mislabelled, (n,)."""
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.multilabel_classification import filter as multi_label
    except ImportError:
        raise ConfigError(
            "the baseline cleanlab needs the package cleanlab", hint="pip install 'capro[cleanlab]'"
        ) from None
    beliefs = probabilities.astype(np.float64)
    if not kind_of(labels).multi_label:
        beliefs /= beliefs.sum(axis=1, keepdims=True)
        issues = find_label_issues(labels, beliefs, n_jobs=1)
    else:
        web_labels = [np.flatnonzero(row).tolist() for row in labels > 0]
        issues = multi_label.find_label_issues(web_labels, beliefs, n_jobs=1)
    is_issue: NDArray[np.bool_] = np.asarray(issues, dtype=bool)
    return is_issue


def cleanlab(work: Work) -> Learned:
    """Confident learning (Northcutt et al., "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR
    2021): step 1 without the samples that cleanlab calls mislabelled.
    """
    labels, net = work.training.labels, work.net()
    issues = label_issues(work.beliefs(), labels.cpu().numpy())
    clean = np.flatnonzero(~issues)
    lambda_prj = work.run.settings.pretrain.lambda_prj
    objective = WebLabels(net, work.task, labels[torch.from_numpy(clean)], work.ranks, lambda_prj=lambda_prj)
    work.fit(objective, "cleanlab", clean)
    return net, {"removed": int(issues.sum())}


def vote(train: Floats, labels: Labels, test: Floats, n_classes: int, *, k: int) -> Floats:
    """Share of each class among the k nearest training samples by cosine, weighted by it.

    Args:
        train: features, (n, d).
        labels: web labels, (n,) or (n, C).
        test: features, (m, d).
        n_classes: C.
        k: neighbours; fewer where there are fewer.

    Returns:
        (m, C); single-label rows sum to 1.
    """
    import faiss

    k, metric = min(k, len(train)), faiss.METRIC_INNER_PRODUCT
    near, rows = faiss.knn(unit_rows(test), unit_rows(train), k, metric=metric)  # (m, k)
    weight = np.maximum(near, 0) + 1e-6
    member = kind_of(labels).membership(labels, n_classes).astype(np.float32)
    scores = np.einsum("mk,mkc->mc", weight, member[rows])
    return np.asarray(scores / weight.sum(axis=1, keepdims=True), dtype=np.float32)


def knn(_: Work) -> Learned:
    """No networks: neighbours vote."""
    return None, {"k": VOTERS}


class SmallLoss(BaselineObjective):
    """Learn from the samples of a batch whose loss is small; with a second network, from those of the other.

    The share that is left out grows linearly from 0 to ``noise``.

    Args:
        work: What the baseline works with.
        net: Networks; what is reported.
        other: A second one with another start, or None.
        lambda_prj: Weight of L_prj.
        noise: Share of wrong labels, as estimated.
        ramp: Epochs until that share is reached.
    """

    def __init__(
        self, work: Work, net: Siamese, other: Siamese | None, *, lambda_prj: float, noise: float, ramp: int
    ) -> None:
        super().__init__(work, net, lambda_prj=lambda_prj)
        self._other, self._noise, self._ramp = other, noise, ramp
        self._nets = [net] if other is None else [net, other]

    def parameters(self) -> list[nn.Parameter]:
        parts = [part for net in self._nets for part in (net.encoder, net.heads)]
        return [parameter for part in parts for parameter in part.parameters()]

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        super().begin_epoch(epoch, resumed=resumed)
        if self._other is not None:
            self._other.train()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y, share = rows_of(self._labels, batch.samples), self.share(batch)
        left_out = self._noise * min(1.0, batch.epoch / self._ramp)
        outs = [net(batch.query).query for net in self._nets]
        easy = [smallest(sample_losses(self._task, out.p, y), left_out) for out in outs]
        easy.reverse()  # each learns from the other's choice; alone, from its own
        cls, prj = torch.zeros(()), torch.zeros(())
        for out, rows in zip(outs, easy, strict=True):
            count = float(len(rows))
            cls = cls + self._task.cls(out.p[rows], y[rows], count)
            prj = prj + reconstruction_loss(out.v_rec, out.v, count=share)
            prj = prj + self._task.cls(out.q[rows], y[rows], count)
        return {"cls": cls, "prj": prj}

    def state(self) -> dict[str, Tensor]:
        other = {} if self._other is None else self._other.state_dict()
        return {f"other.{name}": tensor for name, tensor in other.items()}


def smallest(losses: Tensor, left_out: float) -> Tensor:
    """Rows of the smallest losses; at least one stays.

    >>> smallest(torch.tensor([3.0, 1.0, 2.0, 9.0]), 0.5).tolist()
    [1, 2]
    """
    count = max(1, round(len(losses) * (1 - left_out)))
    return torch.argsort(losses, stable=True)[:count]


def coteaching(work: Work) -> Learned:
    """Co-teaching (Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels",
    NeurIPS 2018).

    Of the paper only the abstract could be found here; this follows the authors' released training code.

    - Two networks see the same batches. In each, the samples of small loss are probably labelled right, and the
      other network learns from them alone: each filters for the other, so that a mistake is not fed back to who
      made it.
    - The share of a batch that is left out grows linearly from 0 to the share of wrong labels, within 10 of 200
      epochs, here the same part of the epochs (one at least): left out too early, whole classes never start to
      be learnt.
    - The first network is the result.

    The two see the same batches in the same order. An encoder that starts from random weights starts from others
    in the second network; with pretrained weights, or a frozen encoder, only their heads differ.

    Different: the share of wrong labels, which the authors know, is estimated by confident counting from
    cross-validated beliefs (multi-label: a fifth). Step 1's projection loss stays, its part of the labels on the
    chosen samples. Optimiser and schedule are step 1's, theirs Adam, with another momentum later on.
    """
    return _by_small_losses(work, work.net("second"), "co-teaching")


def smallloss(work: Work) -> Learned:
    """Small-loss selection: half of Co-teaching, one network that chooses for itself."""
    return _by_small_losses(work, None, "small-loss selection")


def _by_small_losses(work: Work, other: Siamese | None, name: str) -> Learned:
    plan, noise, net = work.run.settings.pretrain, work.noise(), work.net()
    ramp = max(1, round(RAMP * plan.epochs))
    work.fit(SmallLoss(work, net, other, lambda_prj=plan.lambda_prj, noise=noise, ramp=ramp), name)
    return net, {"noise": noise}
