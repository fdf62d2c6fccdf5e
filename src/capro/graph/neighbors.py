"""Nearest others by cosine: the pool that re-ranking and smoothing work on.

What is defined here, and tested:

- A sample is never its own neighbour, however many copies of it there are.
- Rows are sorted by similarity, descending; ties by index, ascending.
- Equal vectors (copies of one image, equal texts) are searched once and expanded afterwards. Their
  similarity is exactly 1, and where there are more copies than fit, the lowest indices are taken.
- Two *different* directions with equal similarity (to the last bit) at the very cut: FAISS decides
  which one is in, in the same way each time, but not always by index.
- A zero vector (a missing text) has no direction: it has no neighbours and is nobody's neighbour.
- Fewer than k others: the row ends in index -1 with similarity -inf.

Cost: exact search O(N^2 d) at the speed of a matrix product, with one normalised copy of the
features and O(N k) beyond. IVF looks at nprobe of about 4 sqrt(N) cells, and holds a second copy.
With a budget both copies are files that are mapped (`capro.graph.ondisk`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capro.errors import ConfigError, DataError
from capro.graph.ondisk import (
    Budget,
    Floats,
    Index,
    Ints,
    RowReader,
    Searcher,
    exact_search,
    index_search,
    inverted_lists,
    new_array,
    release,
)

ROWS = 2048  # per block; expanding k copies of each of k hits stays under 0.2 GB at k = 40
QUERIES = 4096  # rows that are searched at once; FAISS's own block
NPROBE = 64  # cells of an index in memory that are searched; more is slower and finds more


@dataclass(frozen=True)
class Neighbors:
    """The k nearest others of each sample, best first.

    Attributes:
        index: (n, k), -1 where there are fewer than k others.
        similarity: (n, k), cosine in [-1, 1]; -inf where index is -1.
        recall: share of the true neighbours that IVF found, on a sample; None if exact.
    """

    index: Ints
    similarity: Floats
    recall: float | None = None


Through = Callable[[Searcher, RowReader, int], Iterable[tuple[Floats, NDArray[np.int64]]]]


def unit_rows(features: ArrayLike, name: str = "features", out: Floats | None = None) -> Floats:
    """Rows of length one, (n, d); a zero row stays zero. O(N d), in blocks: reads memory maps once.

    >>> unit_rows([[3.0, 4.0], [0.0, 0.0]]).round(2).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    x = _table(features, name)
    unit = np.empty(x.shape, np.float32) if out is None else out
    for part, block, norm in _measured(x, name):
        unit[part] = block / np.where(norm > 0, norm, 1)[:, None]
        unit[part] += 0.0  # -0.0 becomes 0.0: equal vectors have equal bytes
    return unit


def row_norms(features: ArrayLike, name: str = "features") -> NDArray[np.float64]:
    """Lengths of rows, (n,); the same checks as `unit_rows` without its copy."""
    return np.concatenate([np.empty(0), *(norm for _, _, norm in _measured(_table(features, name), name))])


def _table(features: ArrayLike, name: str) -> NDArray[Any]:
    x = np.asanyarray(features)
    if x.ndim != 2:
        raise DataError(
            f"{name}: expected (samples, width), got shape {x.shape}",
            hint="pass one row of numbers per sample",
        )
    return x


def _measured(x: NDArray[Any], name: str) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float64]]]:
    """Blocks of rows with their lengths; float64, because the squares of float32 may underflow."""
    for start in range(0, len(x), ROWS):
        part = slice(start, start + ROWS)
        block = np.asarray(x[part], np.float64)
        norm = np.sqrt((block * block).sum(axis=1))
        wrong = np.flatnonzero(~np.isfinite(norm))
        if wrong.size:
            raise DataError(
                f"{name}: row {start + int(wrong[0])} holds NaN or infinity",
                hint="train again with a lower learning rate: an encoder that diverged gives such features",
            )
        yield part, block, norm


def search_here(
    searcher: Searcher, base: RowReader, width: int
) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """Search every row of the base in blocks, in this process."""
    for start in range(0, len(base) if width else 0, QUERIES):
        yield searcher.search(base[start : start + QUERIES], width)


def nearest(
    features: ArrayLike,
    k: int,
    *,
    exact_below: int = 200_000,
    seed: int = 0,
    budget: Budget | None = None,
    index_kind: Index = "auto",
    recall: float = 0.95,
    through: Through = search_here,
) -> Neighbors:
    """Find the k nearest others of each sample by cosine.

    Args:
        features: (n, d); need not be normalised.
        k: neighbours per sample; re-ranking searches for 4k and keeps k (docs/paper.md).
        exact_below: exact search for n below this, IVF from there on.
        seed: of the IVF clustering and of the sample on which recall is measured.
        budget: memory to keep to, with copies of the features and the index on disk; None holds all
            in memory.
        index_kind: with a budget: `exact`, `ivf`, `pq`, or `auto` by size.
        recall: with a budget: share of the true neighbours to find; nprobe follows from it.
        through: how the rows of the base are searched; others than `search_here` share the work.

    Returns:
        Neighbours of all samples, with recall if the search was approximate.

    >>> near = nearest([[1, 0], [1, 0], [1, 1], [0, 0]], k=2)
    >>> near.index.tolist()
    [[1, 2], [0, 2], [0, 1], [-1, -1]]
    >>> near.similarity[2].round(3).tolist()
    [0.7070000171661377, 0.7070000171661377]
    """
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}", hint="set k to 1 or more")
    unit, groups, base = _unit_groups(features, budget)
    width = min(k + 1, len(base))  # one more: a vector finds itself
    by_size = index_kind == "auto" or budget is None
    if len(base) < 2 or (len(unit) < exact_below if by_size else index_kind == "exact"):
        searcher = Searcher(exact_search(base, budget))
    elif budget is not None:
        searcher = index_search(base, width, budget, kind=index_kind, recall=recall, seed=seed)
    else:
        searcher = inverted_lists(base, width, nprobe=NPROBE, seed=seed)
    similarity = new_array(budget, "similarity", (len(base), width))
    hits = new_array(budget, "hits", (len(base), width), np.int32)
    start = 0
    for values, rows in through(searcher, base, width):
        part = slice(start, start + len(values))
        similarity[part], hits[part] = values, rows
        start += len(values)
    measured_recall = searcher.recall
    del searcher  # an index frees its lists
    index, cosine = _expanded(groups, hits, similarity, k, budget)
    release(hits, similarity, index, cosine, unit)
    return Neighbors(index, cosine, measured_recall)


def _expanded(
    groups: _Groups, hits: Ints, similarity: Floats, k: int, budget: Budget | None
) -> tuple[Ints, Floats]:
    """From groups that each group found to samples that each sample found, (n, k) each."""
    n = len(groups.of_row)
    index = new_array(budget, "pool", (n, k), np.int32)
    cosine = new_array(budget, "pool-similarity", (n, k))
    for start in range(0, n, ROWS):
        part = slice(start, start + ROWS)
        index[part], cosine[part] = -1, -np.inf
        grouped = np.flatnonzero(groups.of_row[part] >= 0)
        group = groups.of_row[part][grouped]
        index[part][grouped], cosine[part][grouped] = groups.expand(
            start + grouped, hits[group], similarity[group], k
        )
    return index, cosine


def _unit_groups(features: ArrayLike, budget: Budget | None) -> tuple[Floats, _Groups, RowReader]:
    """Unit rows, groups of equal rows, and one row of each group."""
    table = _table(features, "features")
    unit = unit_rows(table, out=None if budget is None else budget.array("unit", table.shape))
    release(table)
    groups = _Groups.of(unit)
    release(unit)
    if len(groups.first) == len(unit):
        return unit, groups, RowReader(unit, budget)
    base = new_array(budget, "base", (len(groups.first), unit.shape[1]))
    for start in range(0, len(base), ROWS):
        base[start : start + ROWS] = unit[groups.first[start : start + ROWS]]
    release(base, unit)
    return unit, groups, RowReader(base, budget)


@dataclass(frozen=True)
class _Groups:
    """Which rows are equal. Zero rows are in no group (-1)."""

    of_row: Ints  # (n,)
    first: Ints  # (g,) one row of each group
    members: Ints  # non-zero rows sorted by group, then by index
    start: NDArray[np.int64]  # (g + 1,) where a group's members begin

    @classmethod
    def of(cls, unit: Floats) -> _Groups:
        """Group equal rows by a 128-bit digest of their bytes: O(N d), 16 bytes per row."""
        seen: dict[bytes, int] = {}
        of_row = np.full(len(unit), -1, np.int32)
        for i in np.flatnonzero(unit.any(axis=1)):
            digest = hashlib.blake2b(unit[i], digest_size=16).digest()
            of_row[i] = seen.setdefault(digest, len(seen))
        order = np.argsort(of_row, kind="stable").astype(np.int32)
        members = order[int((of_row < 0).sum()) :]
        start = np.searchsorted(of_row[members], np.arange(len(seen) + 1))
        return cls(of_row, members[start[:-1]], members, start)

    def expand(self, rows: NDArray[Any], hits: Ints, similarity: Floats, k: int) -> tuple[Ints, Floats]:
        """Turn hit groups (b, w) of `rows` into their k best samples, without the sample itself."""
        own = self.of_row[rows][:, None]  # (b, 1)
        # FAISS may rank near copies above a vector itself: its own group is put in by hand
        groups = np.hstack([own, np.where(hits == own, -1, hits)])  # (b, w + 1)
        cosine = np.hstack([np.ones_like(own, np.float32), np.clip(similarity, -1, 1)])
        size = np.where(groups >= 0, self.start[groups + 1] - self.start[groups], 0)
        if size.max(initial=0) == 1:
            return self._singles(groups[:, 1:], cosine[:, 1:], k)
        size = np.minimum(size, k + 1).ravel()  # k others, and perhaps the sample itself
        row = np.repeat(np.arange(len(rows)), size.reshape(groups.shape).sum(axis=1))
        within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        index = self.members[np.repeat(self.start[groups.ravel()], size) + within]
        flat = np.repeat(cosine.ravel(), size)
        other = index != rows[row]
        row, index, flat = row[other], index[other], flat[other]

        order = np.lexsort((index, -flat, row))
        row, index, flat = row[order], index[order], flat[order]
        rank = np.arange(len(row)) - np.searchsorted(row, row)  # position within the row
        keep = rank < k
        best = np.full((len(rows), k), -1, np.int32)
        value = np.full((len(rows), k), -np.inf, np.float32)
        best[row[keep], rank[keep]] = index[keep]
        value[row[keep], rank[keep]] = flat[keep]
        return best, value

    def _singles(self, groups: Ints, cosine: Floats, k: int) -> tuple[Ints, Floats]:
        """`expand` where no vector has copies: sorting within rows is 7 times as quick."""
        index = np.where(groups >= 0, self.first[groups], -1)
        value = np.where(groups >= 0, cosine, np.float32(-np.inf))
        order = np.lexsort((index, -value), axis=1)[:, :k]
        best = np.full((len(groups), k), -1, np.int32)
        similarity = np.full((len(groups), k), -np.inf, np.float32)
        best[:, : order.shape[1]] = np.take_along_axis(index, order, axis=1)
        similarity[:, : order.shape[1]] = np.take_along_axis(value, order, axis=1)
        return best, similarity
