"""Step 1: learn from labels as they are."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from capro.nets.siamese import Siamese
from capro.run.ranks import Ranks
from capro.train.batches import Batch
from capro.train.objective import clean_share, rows_of
from capro.train.tasks import Task


class WebLabels:
    """Step 1: L_cls + L_prj on the labels as they are (Eq. 1). Also trains heads on anchors."""

    keys = False

    def __init__(
        self, net: Siamese, task: Task, labels: Tensor, ranks: Ranks, *,
        lambda_prj: float, freeze: bool = False,
    ) -> None:  # fmt: skip
        self.net, self._task, self._labels, self._ranks = net, task, labels, ranks
        self._freeze = freeze
        self.weights: Mapping[str, float] = {"prj": lambda_prj}

    def parameters(self) -> list[nn.Parameter]:
        return [*self.net.encoder.parameters(), *self.net.heads.parameters()]

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

    def after(self, batch: Batch) -> None:
        del batch

    def state(self) -> dict[str, Tensor]:
        return {}

    def restored(self) -> None:
        pass

    def statistics(self) -> dict[str, float]:
        return {}
