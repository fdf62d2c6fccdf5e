"""The verdict store as the review needs it: with the expected errors, and the questions in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capro.data.manifest import Manifest
from capro.data.pixels import PLACES
from capro.pipeline.artefacts import MANIFEST
from capro.pipeline.run import Run
from capro.results.store import VerdictStore
from capro.review.queue import Queue, chance_of_error, groups_of, make_queue, review_seed


@dataclass(frozen=True)
class ReviewTable(VerdictStore):
    """A cleaned run as the review sees it, by training row."""

    @cached_property
    def error(self) -> NDArray[np.float32]:
        """Expected number of wrong labels, (n,)."""
        return chance_of_error(self.scores, self.corrected, self.none_score).astype(np.float32)

    @cached_property
    def queue(self) -> Queue:
        """The questions in order."""
        concern, labels = self._concern
        group = groups_of(self.duplicate_group, *labels)
        return make_queue(self.error, concern, group, self.outlier_score, seed=review_seed(self.run))

    @property
    def _concern(self) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """The class that each question is about, and the labels that near-duplicate questions have in common."""
        given, corrected = self.given, self.corrected
        if self.multi_label:
            doubt = np.abs(self.scores[:] - 0.5).argmin(axis=1).astype(np.int64)
            return doubt, [
                np.unique(each, axis=0, return_inverse=True)[1].reshape(-1) for each in (given, corrected)
            ]
        best = self.scores.argmax(axis=1)
        return np.where(corrected >= 0, corrected, np.where(given >= 0, given, best)), [given, corrected]

    @cached_property
    def images(self) -> Manifest:
        """The manifest's columns that name where pictures are."""
        columns = [*PLACES, "status"]
        return Manifest(self.run.read_with(MANIFEST, lambda file: pq.read_table(file, columns=columns)))


def load_table(run: Run) -> ReviewTable:
    """Read a run that has been cleaned."""
    run.need("clean")
    table = ReviewTable(run)
    # at once, not when first asked for: clean may be done again while the review is open
    _ = table.queue, table.images, table.decision, table.label_score, table.pixels, table.anchors
    return table
