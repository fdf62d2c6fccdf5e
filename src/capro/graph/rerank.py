"""Reciprocal neighbours and re-ranking by Jaccard distance (Eq. 3; docs/paper.md).

All of it is linear in N: O(N k) entries in the sparse matrices, O(k) for each of the 4k N pairs in
the pools. A row of V has at most k + 1 entries in sorted order: scipy merges two rows in one pass. With
max(a, b) = a + b - min(a, b), only the sum of the minima is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

from capro.errors import ConfigError
from capro.graph.neighbors import Neighbors
from capro.graph.ondisk import Floats, Ints

PAIRS = 1 << 17  # per block; two gathered rows of V each: some 50 MB at k = 10


def sparse_rows(index: Ints, values: NDArray[Any], columns: int) -> csr_array:
    """A sparse (n, columns) matrix with values[i, m] at (i, index[i, m]); index -1 is left out."""
    present = index >= 0
    start = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    matrix = csr_array((values[present], index[present], start), shape=(len(index), columns))
    matrix.sort_indices()
    return matrix


def encoding(neighbors: Neighbors, k: int, *, own: bool = False) -> csr_array:
    """Encode each sample by its reciprocal neighbours, V_ij = exp(-d(i, j)) on R(i, k), Eq. 3.

    Args:
        neighbors: of all n samples; the first k columns are N(i, k).
        k: neighbourhood size.
        own: a sample is in its own R(i, k) beside k others, V_ii = exp(-0) = 1 (docs/paper.md, Readings).

    Returns:
        V, (n, n), exactly symmetric. The row of a sample without reciprocal neighbours is empty (but for V_ii).
    """
    width = neighbors.index.shape[1]
    if not 1 <= k <= width:
        raise ConfigError(
            f"k = {k} neighbours of lists of {width}", hint="search for at least k neighbours first"
        )
    index = neighbors.index[:, :k]
    lists = sparse_rows(index, np.exp(neighbors.similarity[:, :k] - 1), len(index))
    # the minimum with the transpose keeps what is in both, and that is R
    mutual: csr_array = lists.minimum(lists.T.tocsr()).tocsr()
    return (mutual + eye_array(len(index), dtype=mutual.dtype)).tocsr() if own else mutual


def jaccard_distance(V: csr_array, rows: NDArray[Any], cols: NDArray[Any]) -> Floats:
    """Compare neighbourhoods, d_J = 1 - sum_m min(V_im, V_jm) / sum_m max(V_im, V_jm), Eq. 3.

    Args:
        V: encoding, (n, m), non-negative.
        rows: (p,) first sample of each pair.
        cols: (p,) second sample of each pair.

    Returns:
        (p,) in [0, 1]. Two empty rows (an empty union) share nothing: 1.
    """
    mass = np.asarray(V.sum(axis=1))
    distance = np.ones(len(rows), np.float32)
    # an empty row shares nothing: such pairs are 1 without looking
    todo = np.flatnonzero((mass[rows] > 0) & (mass[cols] > 0))
    for start in range(0, len(todo), PAIRS):
        part = todo[start : start + PAIRS]
        i, j = rows[part], cols[part]
        shared = V[i].minimum(V[j]).sum(axis=1)
        distance[part] = 1 - shared / (mass[i] + mass[j] - shared)
    return np.clip(distance, 0, 1, out=distance)  # sums in another order may leave -1e-8


def rerank(neighbors: Neighbors, k: int, *, own: bool = False) -> Neighbors:
    """Re-rank each pool by d* = (d + d_J) / 2 and keep the k best, N*(i, k), Eq. 3.

    Args:
        neighbors: the pools of all n samples, 4k wide (any width from k on works).
        k: neighbourhood size, of V and of the result.
        own: see `encoding`; no list of the result names its own sample either way.

    Returns:
        N*(i, k), best first, with cosines; ties keep the order of the pool.
    """
    n = len(neighbors.index)
    V = encoding(neighbors, k, own=own)
    index = np.empty((n, k), np.int32)
    similarity = np.empty((n, k), np.float32)
    step = max(1, 4 * PAIRS // neighbors.index.shape[1])
    for start in range(0, n, step):
        pool = neighbors.index[start : start + step]  # (b, 4k)
        cosine = neighbors.similarity[start : start + step]
        row, column = np.nonzero(pool >= 0)
        refined = np.full(pool.shape, np.inf, np.float32)
        d_J = jaccard_distance(V, row + start, pool[row, column])
        refined[row, column] = (1 - cosine[row, column] + d_J) / 2
        order = np.argsort(refined, axis=1, kind="stable")[:, :k]
        part = slice(start, start + step)
        index[part] = np.take_along_axis(pool, order, axis=1)
        similarity[part] = np.take_along_axis(cosine, order, axis=1)
    return Neighbors(index, similarity, neighbors.recall)
