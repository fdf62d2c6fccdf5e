"""Step 1: learn from labels as they are."""

from __future__ import annotations

from torch import Tensor

from capro.nets.siamese import Siamese
from capro.run.ranks import Ranks
from capro.train.batches import Batch
from capro.train.objective import Objective, clean_share, rows_of
from capro.train.tasks import Task


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
