"""A sample among its nearest pictures: outliers, near duplicates, and whose texts were added to its own.

Scores follow cleanlab: ``outlier_score`` is exp(-a / median a), a the mean cosine distance to the k nearest
pictures, an issue where a lies above Q3 + 1.7 IQR; ``near_duplicate_score`` is 1 - exp(-d / median d), d the
distance to the nearest picture, and duplicates are pairs with d below 0.13 of that median.

Cost beyond the neighbour search (see graph/neighbors.py): O(N k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from capro.graph.neighbors import Neighbors

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
