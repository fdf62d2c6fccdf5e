"""A sample among its nearest pictures: outliers, near duplicates, lent texts, and the share of wrong labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from capro.graph.neighbors import Neighbors, nearest

NEIGHBORS = 10  # cleanlab's k
OUTLIER_IQR = 1 / 0.37037 - 1  # cleanlab's default threshold for features, as a multiple of the IQR
DUPLICATE_SHARE = 0.13  # cleanlab's default, of the median distance to the nearest
LENDERS = 5  # neighbours named per sample
TINY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Neighbourhood:
    """Outliers and near duplicates, by training row."""

    outlier_score: NDArray[np.float64]  # (n,), low: unlike all others
    is_outlier: NDArray[np.bool_]
    duplicate_score: NDArray[np.float64]  # (n,), low: very like another
    duplicates: list[NDArray[np.int64]]  # rows of the near duplicates, ascending

    def part(self, rows: slice) -> Neighbourhood:
        """The same of some rows; duplicates keep their row numbers."""
        return Neighbourhood(
            self.outlier_score[rows], self.is_outlier[rows], self.duplicate_score[rows], self.duplicates[rows]
        )


def neighbourhood(near: Neighbors) -> Neighbourhood:
    """Outlier and near-duplicate scores from the nearest pictures, (n, k) by cosine.

    A sample without any neighbour (a zero feature, or a set of one) is an outlier with score 0 and
    has no duplicate.

    >>> from capro.graph.neighbors import nearest
    >>> found = neighbourhood(nearest([[1, 0], [1, 0], [1, 0.2], [1, 0.4], [1, 0.7]], k=2))
    >>> [rows.tolist() for rows in found.duplicates]
    [[1], [0], [], [], []]
    """
    known = near.index >= 0
    distance = np.where(known, np.clip(1 - near.similarity.astype(np.float64), 0, 2), np.nan)
    distance[distance < 1e-6] = 0.0  # float32's rounding of a cosine of one
    count = known.sum(axis=1)
    alone = count == 0
    mean = np.divide(np.nansum(distance, axis=1), count, out=np.full(len(count), np.nan), where=~alone)
    first = distance[:, 0] if distance.size else np.full(len(count), np.nan)
    if alone.all():
        zero = np.zeros(len(count))
        nobody = [np.zeros(0, np.int64) for _ in count]
        return Neighbourhood(zero, ~alone, np.ones(len(count)), nobody)
    typical, closest = (max(float(np.nanmedian(x)), 100 * TINY) for x in (mean, first))
    low, high = np.nanquantile(mean, [0.25, 0.75])
    limit = high + OUTLIER_IQR * (high - low)
    return Neighbourhood(
        outlier_score=np.where(alone, 0.0, np.exp(-np.nan_to_num(mean) / typical)),
        is_outlier=alone | (mean > limit),
        duplicate_score=np.where(alone, 1.0, 1 - np.exp(-np.nan_to_num(first) / closest)),
        duplicates=_mutual(near.index, distance < DUPLICATE_SHARE * closest),
    )


def _mutual(index: NDArray[np.int32], close: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Each row's close others, made symmetric: who is a duplicate of whom goes both ways."""
    found: list[set[int]] = [set() for _ in index]
    for row, place in np.argwhere(close).tolist():
        other = int(index[row, place])
        found[row].add(other)
        found[other].add(row)
    return [np.array(sorted(others), dtype=np.int64) for others in found]


def text_lenders(graph: csr_array | None, has_text: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Rows of the neighbours whose texts were added to each sample's, most similar first, at most LENDERS.

    Args:
        graph: Adjacency of the text enhancement, (n, n); or None.
        has_text: Who has a text of its own to give, (n,).
    """
    if graph is None:
        return [np.zeros(0, np.int64) for _ in has_text]
    return [lenders_of(graph, row, has_text) for row in range(len(has_text))]


def lenders_of(graph: csr_array, row: int, has_text: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The neighbours whose texts were added to one sample's."""
    part = slice(int(graph.indptr[row]), int(graph.indptr[row + 1]))
    order = np.argsort(-graph.data[part], kind="stable")
    others = np.asarray(graph.indices[part][order], dtype=np.int64)
    return others[has_text[others]][:LENDERS]


NOISE_VOTERS = 20  # neighbours that vote on a sample, as many as in the baseline k-NN vote
LEAST_MARGIN = 0.1  # by which anchors must agree more than wrong labels would, else there is no estimate
VOTE_ROWS = 4096  # samples whose votes are in memory at once


def noise_from_anchors(
    v: NDArray[np.float32],
    labels: NDArray[np.int64],
    anchors: NDArray[np.int64],
    *,
    exact_below: int = 200_000,
) -> float | None:
    """Share of wrong web labels, from how anchors and the other samples agree with their likes.

    A sample agrees when its label wins the vote of its nearest others, whatever these are: with
    anchors alone as voters, anchors would agree too well, since they are more like one another than
    like the rest. In a class, anchors agree with the share a and are taken to be right; the others
    agree with the share r. These are a mixture of right ones, who reach a, and wrong ones, who reach
    e = (1 - a) / (C - 1), as if lost votes fell on any class: their noise is (a - r) / (a - e).

    Args:
        v: visual features, (n, d).
        labels: web labels, (n,).
        anchors: rows that are anchors, (m,).
        exact_below: exact search below this many samples.

    Returns:
        Noise of the whole set, or None where anchors agree no more than wrong labels would.
    """
    n_classes = int(labels.max()) + 1
    k = min(NOISE_VOTERS, len(labels) // n_classes // 2)  # small classes: half of their mean size
    if k < 1 or n_classes < 2 or not len(anchors):
        return None
    agree = _votes(labels[nearest(v, k, exact_below=exact_below).index], n_classes) == labels
    anchored = np.zeros(len(labels), dtype=bool)
    anchored[anchors] = True
    sizes, hits = (
        np.stack([np.bincount(labels[at], minlength=n_classes) for at in (part, rest)])
        for part, rest in ((anchored, ~anchored), (anchored & agree, ~anchored & agree))
    )  # (2, C) each: anchors, the others
    a, r = np.divide(hits, sizes, out=np.zeros(hits.shape), where=sizes > 0)
    e = (1 - a) / (n_classes - 1)
    telling = (sizes > 0).all(axis=0) & (a - e >= LEAST_MARGIN)  # else the class looks like others
    counted = sizes[:, telling].sum()
    pooled = hits[0].sum() / sizes[0].sum()
    if counted < 0.5 * len(labels) or pooled - (1 - pooled) / (n_classes - 1) < LEAST_MARGIN:
        return None
    noise = np.clip((a - r)[telling] / (a - e)[telling], 0, 1)
    return float((noise * sizes[1][telling]).sum() / counted)


def _votes(near: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """The class with most votes, (n, k) -> (n,); of equal ones the nearest voter's, else the lowest."""
    winners = np.empty(len(near), dtype=np.int64)
    for begin in range(0, len(near), VOTE_ROWS):
        block = near[begin : begin + VOTE_ROWS]
        votes = np.zeros((len(block), n_classes))
        np.add.at(votes, (np.arange(len(block))[:, None], block), 1)
        votes[np.arange(len(block)), block[:, 0]] += 0.5
        winners[begin : begin + VOTE_ROWS] = votes.argmax(axis=1)
    return winners
