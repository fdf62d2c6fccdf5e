"""What the one loop trains: the interface of an objective, and what objectives share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.method.references import Mixture, Provider
from capro.nets.siamese import Siamese
from capro.run.fingerprints import seed_for
from capro.run.ranks import Ranks
from capro.train.batches import Batch
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
