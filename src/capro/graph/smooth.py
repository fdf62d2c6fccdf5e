"""Text enhancement: texts smoothed over the graph of similar images (docs/paper.md).

Enhancers: `none`; `knn`, the plain k-NN graph of VSGraph; `reciprocal`, the re-ranked mutual
neighbours of CAPro, with the same smoothing. After the search everything takes O(N k d_t) time, and
O(N k) memory beyond the texts that go in and come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, diags_array, eye_array

from capro.errors import ConfigError, DataError, did_you_mean
from capro.graph.neighbors import ROWS, Neighbors, nearest, row_norms, unit_rows
from capro.graph.ondisk import Budget, Floats, RowReader, new_array, release
from capro.graph.rerank import rerank, sparse_rows

Enhancer = Literal["none", "knn", "reciprocal"]
POOL = 4  # the pool that re-ranking chooses from is 4k wide (docs/paper.md)


@dataclass(frozen=True)
class Enhanced:
    """Texts after enhancement, and the graph that did it.

    Attributes:
        texts: S_hat, (n, d_t), unit rows; zero where no text is in reach.
        adjacency: A, (n, n): row i names the samples that lent sample i their text, and how similar
            they look. None for the enhancer `none`.
        recall: of the neighbour search; None if it was exact or there was none.
    """

    texts: Floats
    adjacency: csr_array | None
    recall: float | None


def adjacency(neighbors: Neighbors, *, mutual: bool = True) -> csr_array:
    """Weigh the graph's edges, A_ij = max(0, 1 - d(i, j)), Eq. 2.

    Args:
        neighbors: lists of all n samples; the whole width is used.
        mutual: edges where both list the other (R* of re-ranked lists); otherwise where either does
            (VSGraph: symmetrised by maximum).

    Returns:
        A, (n, n), exactly symmetric, zero diagonal.

    >>> near = Neighbors(np.array([[1], [2], [1]]), np.array([[0.5], [0.75], [0.75]], np.float32))
    >>> adjacency(near).toarray().tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.75], [0.0, 0.75, 0.0]]
    >>> adjacency(near, mutual=False).toarray()[0].tolist()
    [0.0, 0.5, 0.0]
    """
    n = len(neighbors.index)
    lists = sparse_rows(neighbors.index, np.maximum(neighbors.similarity, 0), n)
    transposed = lists.T.tocsr()
    graph: csr_array = lists.minimum(transposed) if mutual else lists.maximum(transposed)
    graph.eliminate_zeros()  # at a right angle: an edge without weight
    return graph


def smoothing_operator(adjacency: csr_array) -> csr_array:
    """Normalise a graph with self-loops, D^-1/2 (A + I) D^-1/2 (docs/paper.md).

    Args:
        adjacency: A, (n, n), symmetric, non-negative, zero diagonal.

    Returns:
        Operator to left-multiply onto text features; an isolated sample keeps its own text.

    >>> smoothing_operator(csr_array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])).toarray().round(3).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    n = adjacency.shape[0]
    looped = (adjacency + eye_array(n, dtype=np.float32)).tocsr()
    degree = looped.sum(axis=1)  # at least 1: the self-loop
    scale = diags_array(1 / np.sqrt(degree), dtype=np.float32)
    operator: csr_array = (scale @ looped @ scale).tocsr()
    return operator


def smooth(operator: csr_array, texts: ArrayLike, *, budget: Budget | None = None) -> Floats:
    """Smooth texts in one hop and normalise, S_hat = normalise(operator S).

    Args:
        operator: (n, n), of `smoothing_operator`.
        texts: S, (n, d_t); zero rows are missing texts.
        budget: memory to keep to, with the result as a mapped file; a block of rows reads only the texts
            that it needs.

    Returns:
        (n, d_t), unit rows; a row that stays zero stays zero.

    >>> smooth(csr_array([[0.5, 0.5], [0.5, 0.5]]), [[0.0, 2.0], [0.0, 0.0]]).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    reader = RowReader(np.asanyarray(texts), budget)
    out = new_array(budget, "smoothed", reader.shape)
    for start in range(0, len(reader), ROWS):
        part = slice(start, start + ROWS)
        rows = operator[part]
        needed, column = np.unique(rows.indices, return_inverse=True)
        block = csr_array((rows.data, column, rows.indptr), shape=(rows.shape[0], len(needed)))
        smoothed = block @ reader[needed].astype(np.float32)  # (b, m) x (m, d_t) -> (b, d_t)
        out[part] = unit_rows(smoothed, "smoothed texts")
        if start % (16 * ROWS) == 0:
            release(out)
    release(out)
    return out


def enhance(
    features: ArrayLike,
    texts: ArrayLike,
    *,
    enhancer: Enhancer,
    k: int,
    own_neighbour: bool = False,
    budget: Budget | None = None,
    **search: Any,
) -> Enhanced:
    """Fill in and correct texts by those of similar images (docs/paper.md).

    Args:
        features: v, (n, d_v), visual features.
        texts: S, (n, d_t), text features, normalised here; zero rows are missing texts.
        enhancer: `none`, `knn` or `reciprocal`.
        k: neighbours of a sample in the graph.
        own_neighbour: in re-ranking a sample is in its own R(x, k), see `capro.graph.rerank.encoding`.
        budget: memory to keep to, see `nearest`; the texts that come out are a mapped file too.
        search: options of `nearest`.

    Returns:
        S_hat and the graph.
    """
    if enhancer not in get_args(Enhancer):
        raise ConfigError(f"unknown enhancer {enhancer!r}", hint=did_you_mean(enhancer, get_args(Enhancer)))
    if enhancer == "none":
        table = np.asanyarray(texts)
        return Enhanced(
            unit_rows(table, "texts", out=new_array(budget, "unit-texts", table.shape)), None, None
        )
    norm = row_norms(texts, "texts")
    release(texts)
    neighbors = nearest(features, pool_width(enhancer, k), budget=budget, **search)
    if len(neighbors.index) != len(norm):
        raise DataError(
            f"{len(neighbors.index)} samples have features, {len(norm)} have texts",
            hint="embed both from the same manifest",
        )
    if enhancer == "knn":
        graph = adjacency(neighbors, mutual=False)
    else:
        graph = adjacency(rerank(neighbors, k, own=own_neighbour))
    # unit texts without a copy of them: their lengths go into the operator's columns
    scale = diags_array(1 / np.where(norm > 0, norm, 1), dtype=np.float32)
    operator = (smoothing_operator(graph) @ scale).tocsr()
    return Enhanced(smooth(operator, texts, budget=budget), graph, neighbors.recall)


def pool_width(enhancer: Enhancer, k: int) -> int:
    """How many neighbours to search for: 4k for `reciprocal`, k for `knn`, 0 for `none`."""
    return {"none": 0, "knn": k, "reciprocal": POOL * k}[enhancer]
