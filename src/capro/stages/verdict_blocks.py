"""What verdicts are written from, by blocks of training rows that are small enough to be sent to a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capro.evaluate import verdicts
from capro.evaluate.neighbourhood import Neighbourhood
from capro.run.kept_scores import Entries, KeptScores
from capro.stages.posterior import row_blocks
from capro.train.judgement import Judged
from capro.train.setup import TrainingSet

Block = tuple[dict[str, Any], Entries]  # fields of `verdicts.Evidence` but its scores, which are kept ones


@dataclass(frozen=True)
class Known:
    """What verdicts are written from, by training row; scores are made whole block by block."""

    training: TrainingSet
    ids: NDArray[np.object_]
    anchored: NDArray[np.bool_]
    judged: Judged
    distances: pd.DataFrame  # sorted by row
    pictures: Neighbourhood
    lenders: list[NDArray[np.int64]]
    has_text: NDArray[np.bool_]
    chosen_by: NDArray[np.object_]
    gamma: float
    person: NDArray[np.bool_] | None

    def blocks(self) -> Iterator[Block]:
        """Of all training rows, in order."""
        return map(self._block, row_blocks(len(self.ids), len(self.training.classes)))

    def _block(self, rows: slice) -> Block:
        judged, near = self.judged, self.pictures
        begin, end = np.searchsorted(self.distances["row"].to_numpy(), [rows.start, rows.stop])
        named, (duplicates, lenders) = _renumbered(near.duplicates[rows], self.lenders[rows])
        found = {
            "ids": self.ids[rows],
            "classes": self.training.classes,
            "given": self.training.labels[rows].cpu().numpy(),
            "corrected": judged.labels[rows],
            "decisions": judged.decisions[rows],
            "anchored": self.anchored[rows],
            "none": None if judged.none is None else judged.none[rows],
            "ask": None if judged.ask is None else judged.ask[rows],
            "text_distance": self.distances.iloc[begin:end][["id", "class", "distance"]],
            "pictures": Neighbourhood(
                near.outlier_score[rows], near.is_outlier[rows], near.duplicate_score[rows], duplicates
            ),
            "lenders": lenders,
            "has_text": self.has_text[rows],
            "chosen_by": self.chosen_by[rows],
            "gamma": self.gamma,
            "person": None if self.person is None else self.person[rows],
            "everybody": (self.ids[named], judged.labels[named]),
        }
        return found, judged.scores[rows]


def frame_of(make: Callable[[verdicts.Evidence], pd.DataFrame], block: Block) -> pd.DataFrame:
    """Verdicts of a block of rows, whose scores are made whole here."""
    found, kept = block
    names, count = kept.dtype.names or (), len(found["classes"])

    def scores(name: str) -> NDArray[np.float32]:
        if name not in names:  # no prototypes with method plus
            return np.full((len(kept), count), np.nan, np.float32)
        return KeptScores(kept, name, count)[:]

    return make(
        verdicts.Evidence(
            fused=scores("fused"),
            classifier=scores("classifier"),
            similarity=scores("similarity"),
            text=scores("text") if "text" in names else None,
            **found,
        )
    )


Lists = list[NDArray[np.int64]]


def _renumbered(*lists: Lists) -> tuple[NDArray[np.int64], list[Lists]]:
    """The rows that lists name, ascending, and the lists with places in it: a block needs no other rows.

    >>> rows, (first, second) = _renumbered([np.array([7, 3])], [np.array([9])])
    >>> rows.tolist(), first[0].tolist(), second[0].tolist()
    ([3, 7, 9], [1, 0], [2])
    """
    flat = [np.concatenate([np.zeros(0, np.int64), *each]) for each in lists]
    named = np.unique(np.concatenate(flat))
    places = [
        np.split(np.searchsorted(named, rows), np.cumsum([len(row) for row in each])[:-1])
        for rows, each in zip(flat, lists, strict=True)
    ]
    return named, places
