"""What the one loop trains: the interface of an objective, step 1 (web labels) and step 3 (the classifier alone)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capro.config import FinetuneSettings
from capro.core.references import Mixture, Provider
from capro.models.siamese import Siamese
from capro.pipeline.checksums import seed_for
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch, Inputs, forward_plain
from capro.train.tasks import Task


class Objective:
    """What the loop trains: the loss terms of a batch, and what happens around a step."""

    net: Siamese
    keys = False  # whether batches need key views
    weights: Mapping[str, float] = {}  # lambda of each loss term

    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser may change."""
        return [*self.net.encoder.parameters(), *self.net.heads.parameters()]

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        """Called before an epoch, or where a run resumes within one."""
        raise NotImplementedError

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Loss terms of a batch."""
        raise NotImplementedError

    def after(self, batch: Batch) -> None:
        """Called after the optimiser's step."""

    def state(self) -> dict[str, Tensor]:
        """Everything beside weights that a resumed run needs; the tensors themselves, to be filled."""
        return {}

    def restored(self) -> None:
        """Called after ``state`` was filled from a checkpoint."""

    def statistics(self) -> dict[str, float]:
        """Numbers of the epoch that has ended."""
        return {}


def clean_share(task: Task, everyones: Tensor, ranks: Ranks) -> Tensor:
    """Samples per rank that are not out, of the labels of the global batch: the divisor of loss terms."""
    return (~task.out(everyones)).sum() / ranks.count


def mixture_of(reference: Provider, batch: Batch, ranks: Ranks, seed: int) -> Mixture | None:
    """How a step mixes its batch, if it does: by seed, epoch, step and rank, so that a resumed run draws the same."""
    generator = torch.Generator(batch.query.device)
    generator.manual_seed(seed_for(seed, batch.epoch, batch.step, ranks.index))
    return reference.mix(len(batch.query), generator)


def rows_of(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Some rows of a tensor, by numpy's numbers."""
    return values[torch.from_numpy(rows).to(values.device)]


class WebLabels(Objective):
    """Step 1: L_cls + L_prj on the labels as they are (Eq. 1). Also trains heads on anchors."""

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *,
        lambda_prj: float, freeze: bool = False,
    ) -> None:  # fmt: skip
        self.net, self._task, self._labels, self._ranks = net, task, labels, ranks
        self._freeze = freeze
        self.weights = {"prj": lambda_prj}

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        del epoch, resumed
        self.net.freeze_encoder(self._freeze)
        self.net.train()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        out = self.net(batch.query).query
        share = len(batch.everyone) / self._ranks.count
        clean = clean_share(self._task, rows_of(self._labels, batch.everyone), self._ranks)
        return {"cls": self._task.cls(out.p, y, clean), "prj": self._task.prj(out, y, clean, share)}


FRAMED_ON = 4096  # samples of which `Frame` takes the mean


class Frame(NamedTuple):
    """Coordinates in which a linear classifier on v is quick to train: W (v - center) + scale b.

    Features after a ReLU have a large mean. A classifier on v itself learns its bias through that mean,
    which keeps the rate low, and weight decay then holds the bias back. The scale lets the bias learn as
    fast as the fastest direction of W, no faster, so the rate need not be lower for it.
    """

    center: Tensor  # (d_v,), mean of v
    scale: Tensor  # (), largest standard deviation of v in any direction, 1 at least

    @classmethod
    @torch.no_grad()
    def of(cls, net: Siamese, inputs: Inputs, positions: NDArray[np.int64], ranks: Ranks) -> Frame:
        """Of unaugmented features of samples that are spread evenly over the set."""
        net.eval()
        chosen = np.linspace(0, len(positions) - 1, min(len(positions), FRAMED_ON)).astype(np.int64)
        device = ranks.accelerator.device
        v = forward_plain(net.encoder, inputs, positions[chosen], width=net.encoder.dim, device=device)
        center = v.mean(dim=0)
        away = v - center
        spread = torch.linalg.matrix_norm(away.T @ away / len(v), ord=2).sqrt()
        frame = cls(center, spread.clamp(min=1))
        ranks.align(frame)
        return frame


class ClassifierOnly(Objective):
    """Step 3: L_cls on the corrected labels; the encoder in eval mode, so that statistics stay.

    Args:
        net: Networks as step 2 left them.
        task: Single-label or multi-label.
        labels: Corrected labels of the training rows.
        ranks: The ranks.
        frame: Trains in these coordinates; `finish` brings the classifier back to v's.
    """

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, frame: Frame | None = None
    ) -> None:
        self.net, self._task, self._labels, self._ranks = net, task, labels, ranks
        self._frame = frame
        if frame is not None:
            classifier = net.heads.classifier
            with torch.no_grad():
                classifier.bias.add_(classifier.weight @ frame.center).div_(frame.scale)

    @classmethod
    def by(
        cls, settings: FinetuneSettings, net: Siamese, task: Task, labels: Tensor, ranks: Ranks,
        inputs: Inputs, positions: NDArray[np.int64],
    ) -> ClassifierOnly:  # fmt: skip
        """By the settings of step 3; ``positions`` are those of the labels in the manifest."""
        centred = settings.centred and len(positions)
        frame = Frame.of(net, inputs, positions, ranks) if centred else None
        return cls(net, task.balanced(labels, settings.balance), labels, ranks, frame)

    @torch.no_grad()
    def finish(self) -> None:
        """After training: the classifier as a function of v again."""
        if self._frame is not None:
            classifier = self.net.heads.classifier
            classifier.bias.mul_(self._frame.scale).sub_(classifier.weight @ self._frame.center)
            self._frame = None

    def parameters(self) -> list[nn.Parameter]:
        return list(self.net.heads.classifier.parameters())

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        del epoch, resumed
        self.net.freeze_encoder(True)
        self.net.eval()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            v = self.net.encoder(batch.query)
        y = rows_of(self._labels, batch.samples)
        clean = clean_share(self._task, rows_of(self._labels, batch.everyone), self._ranks)
        return {"cls": self._task.cls(self._logits(v), y, clean)}

    def _logits(self, v: Tensor) -> Tensor:
        classifier = self.net.heads.classifier
        if self._frame is None:
            logits: Tensor = classifier(v)
            return logits
        center, scale = self._frame
        return functional.linear(v.float() - center, classifier.weight, scale * classifier.bias)

    def state(self) -> dict[str, Tensor]:
        return {} if self._frame is None else self._frame._asdict()
