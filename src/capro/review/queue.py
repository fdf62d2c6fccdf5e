"""Which question is worth most? The order of the queue.

The expected gain of asking about a sample is the number of wrong labels that the answer is expected to correct:
the probability that the method's label is wrong (multi-label: the expected number of wrong ones), summed
over near duplicates with the same labels, which are one question. A picture unlike all others counts
less: little can be learnt from it for the rest. Classes take turns: each further question of the same class is
worth `SPREAD` of its gain.

Every `EVERY`-th question is drawn at random from all samples instead. Only those can show how many labels are
right, since the others were chosen because they are doubtful.

Cost: O(n log n) for n samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capro.core.kept_scores import KeptScores
from capro.data.labels import kind_of
from capro.data.manifest import Manifest
from capro.data.pixels import PLACES
from capro.pipeline.artefacts import MANIFEST
from capro.pipeline.checksums import seed_for
from capro.pipeline.run import Run
from capro.results.store import VerdictStore

SPREAD = 0.98  # factor of the gain for each earlier question of the same class
EVERY = 5  # each fifth question is drawn at random
UNLIKE = 0.5  # weight of a picture that is unlike all others
Floats = NDArray[np.floating[Any]]
Rows = NDArray[np.int64]


def chance_of_error(
    fused: Floats | KeptScores, labels: NDArray[np.int64], none: Floats | None = None
) -> Floats:
    """Expected number of wrong labels of each sample, (n,).

    Args:
        fused: probability of each class, (n, C).
        labels: the method's labels, (n,) or (n, C), with -1 for dropped.
        none: single-label: probability of none of these, (n,); None where the method has none.

    >>> fused = np.array([[0.9, 0.1], [0.2, 0.1]])
    >>> chance_of_error(fused, np.array([0, -1]), np.array([0.0, 0.7])).round(2).tolist()
    [0.1, 0.3]
    >>> chance_of_error(np.array([[0.9, 0.4]]), np.array([[1, 0]])).round(2).tolist()
    [0.5]
    """
    if kind_of(labels).multi_label:
        belief = np.where(labels > 0, fused, 1 - np.asarray(fused))
        return np.asarray((1 - belief).sum(axis=1))
    rows = np.arange(len(labels))
    dropped = 1 - fused.max(axis=1) if none is None else none
    belief = np.where(labels >= 0, fused[rows, np.maximum(labels, 0)], dropped)
    return np.asarray(np.clip(1 - belief, 0, 1))


@dataclass(frozen=True)
class Queue:
    """The questions in order.

    Attributes:
        order: all samples in the order in which they are asked, (n,).
        random: whether a sample was drawn at random, (n,).
        gain: expected number of corrected labels, (n,); the sum of a group is at its leader.
        leader: the most doubtful sample of each sample's group, (n,).
        drawn: the random order of all samples, (n,): random questions are taken from its beginning.
    """

    order: Rows
    random: NDArray[np.bool_]
    gain: Floats
    leader: Rows
    drawn: Rows


def make_queue(
    error: Floats, concern: NDArray[np.int64], group: NDArray[np.int64], typical: Floats, *, seed: int
) -> Queue:
    """Order all questions.

    Args:
        error: expected number of wrong labels, (n,).
        concern: class that a question is about, (n,).
        group: number of the group of near-duplicate questions, (n,).
        typical: in [0, 1], low for a picture unlike all others, (n,).
        seed: seed of the random questions.
    """
    n = len(error)
    leader = leaders(error, group)
    weight = UNLIKE + (1 - UNLIKE) * np.clip(np.nan_to_num(typical, nan=1.0), 0, 1)
    gain = np.zeros(n)
    np.add.at(gain, leader, error * weight)
    heads = np.flatnonzero(leader == np.arange(n))
    earlier = pd.Series(-gain[heads]).groupby(concern[heads]).rank(method="first") - 1  # of the same class
    value = gain[heads] * SPREAD ** earlier.to_numpy()
    best = heads[np.lexsort((heads, -value))]
    drawn = random_order(n, seed)
    return Queue(*_interleaved(best, drawn), gain, leader, drawn)


def review_seed(run: Run) -> int:
    """The seed of the random questions: the same in every session of a run."""
    return seed_for(run.settings.seed, "review")


def random_order(n: int, seed: int) -> Rows:
    """The fixed random order of all samples that random questions are taken from."""
    return np.random.default_rng(seed).permutation(n)


def leaders(error: Floats, group: NDArray[np.int64]) -> Rows:
    """The most doubtful sample of each group, by sample, (n,); the first of equal ones.

    >>> leaders(np.array([0.1, 0.5, 0.2]), np.array([7, 7, 8])).tolist()
    [1, 1, 2]
    """
    return pd.Series(error).groupby(group).transform("idxmax").to_numpy(np.int64)


def _interleaved(best: Rows, drawn: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """The best questions with a random one at each `EVERY`-th place, each sample once; and which are random, (n,).

    A sample that the random part takes first is left out of the other, and the other way round.
    """
    n = len(drawn)
    # the place in the queue at which each list would ask each sample
    never = n * (EVERY + 1) + EVERY
    by_gain, by_chance = np.full(n, never), np.full(n, never)
    places = np.arange(n)
    by_gain[best] = places[: len(best)] + places[: len(best)] // (EVERY - 1)
    by_chance[drawn] = places * EVERY + EVERY - 1
    order = np.lexsort((places, np.minimum(by_gain, by_chance)))
    return order, by_chance <= by_gain


def groups_of(group: NDArray[np.int64], *keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Groups of near duplicates, split where the labels differ; each -1 becomes a group of its own.

    >>> groups_of(np.array([0, 0, 0, -1, -1]), np.array([1, 1, 2, 1, 1])).tolist()
    [2, 2, 3, 0, 1]
    """
    alone = np.where(group < 0, np.arange(len(group)), -1)
    table = np.column_stack([group, alone, *keys])
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1]).reshape(-1)


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
        given, corrected = self.given, self.corrected
        if self.multi_label:
            concern = np.abs(self.scores[:] - 0.5).argmin(axis=1).astype(np.int64)
            given, corrected = (
                np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1) for labels in (given, corrected)
            )
        else:
            best = self.scores.argmax(axis=1)
            concern = np.where(corrected >= 0, corrected, np.where(given >= 0, given, best))
        group = groups_of(self.duplicate_group, given, corrected)
        return make_queue(self.error, concern, group, self.outlier_score, seed=review_seed(self.run))

    @cached_property
    def images(self) -> Manifest:
        """The manifest's columns that name where pictures are."""
        return Manifest(self._read(MANIFEST, [*PLACES, "status"]))


def load_table(run: Run) -> ReviewTable:
    """Read a run that has been cleaned."""
    run.identity("clean")
    table = ReviewTable(run)
    # at once, not when first asked for: clean may be done again while the review is open
    _ = table.queue, table.images, table.decision, table.label_score, table.pixels, table.anchors
    return table
