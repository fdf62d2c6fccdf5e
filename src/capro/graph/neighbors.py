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
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capro.errors import ConfigError, DataError
from capro.graph.budget import Budget, Reader, release
from capro.graph.ondisk import Index, Lists, exact_search, index_search, lists_search
from capro.run.artefacts import atomic_path, write_array
from capro.run.shards import Team, planned, sharded

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Search = Callable[[Floats, int], tuple[Floats, NDArray[np.int64]]]

ROWS = 2048  # per block; expanding k copies of each of k hits stays under 0.2 GB at k = 40
BLOCK = 4096  # queries that are searched at once; FAISS's own block
RECALL_SAMPLE = 1000  # rows; the standard error of a recall of 0.9 over 40 neighbours is below 0.005


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

    def first(self, k: int) -> Neighbors:
        """The k best: N(i, k) of a larger pool."""
        return Neighbors(self.index[:, :k], self.similarity[:, :k], self.recall)


@dataclass(frozen=True)
class Share:
    """Ranks that share a search, and blocks of it that a killed run does not lose.

    The main rank calls `nearest`, the others `assist`. Blocks of queries are the same for any number
    of ranks, and so are the values.

    Attributes:
        team: the ranks.
        folder: where blocks go, and what the main rank makes for the others; all see it.
        key: fingerprint of what decides the neighbours.
    """

    team: Team
    folder: Path
    key: str


@dataclass(frozen=True)
class _Task:
    """What the main rank tells the others."""

    base: str  # file of the vectors
    width: int
    lists: Lists | None


def unit_rows(features: ArrayLike, name: str = "features", out: Floats | None = None) -> Floats:
    """Rows of length one, (n, d); a zero row stays zero. O(N d), in blocks: reads memory maps once.

    >>> unit_rows([[3.0, 4.0], [0.0, 0.0]]).round(2).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    x = _table(features, name)
    unit = np.empty(x.shape, np.float32) if out is None else out
    for start in range(0, len(x), ROWS):
        block = np.array(x[start : start + ROWS], np.float64)
        norm = _norms(block, name, start)[:, None]
        block /= np.where(norm > 0, norm, 1)
        unit[start : start + ROWS] = block
        unit[start : start + ROWS] += 0.0  # -0.0 becomes 0.0: equal vectors have equal bytes
    return unit


def row_norms(features: ArrayLike, name: str = "features") -> NDArray[np.float64]:
    """Lengths of rows, (n,); the same checks as `unit_rows` without its copy."""
    x = _table(features, name)
    norms = np.empty(len(x), np.float64)
    for start in range(0, len(x), ROWS):
        block = np.asarray(x[start : start + ROWS], np.float64)
        norms[start : start + ROWS] = _norms(block, name, start)
    return norms


def _table(features: ArrayLike, name: str) -> NDArray[Any]:
    x = np.asanyarray(features)
    if x.ndim != 2:
        raise DataError(
            f"{name}: expected (samples, width), got shape {x.shape}",
            hint="pass one row of numbers per sample",
        )
    return x


def _norms(block: NDArray[np.float64], name: str, start: int) -> NDArray[np.float64]:
    """Lengths of rows, (b,); float64, because the squares of float32 may underflow."""
    norm: NDArray[np.float64] = np.sqrt((block * block).sum(axis=1))
    wrong = np.flatnonzero(~np.isfinite(norm))
    if wrong.size:
        raise DataError(
            f"{name}: row {start + int(wrong[0])} holds NaN or infinity",
            hint="embed the data again; an encoder that diverged gives such rows",
        )
    return norm


def nearest(
    features: ArrayLike,
    k: int,
    *,
    exact_below: int = 200_000,
    nprobe: int = 64,
    seed: int = 0,
    budget: Budget | None = None,
    index_kind: Index = "auto",
    recall: float = 0.95,
    share: Share | None = None,
) -> Neighbors:
    """Find the k nearest others of each sample by cosine.

    Args:
        features: (n, d); need not be normalised.
        k: neighbours per sample; the pool of method.md is 4k of its k.
        exact_below: exact search for n below this, IVF from there on.
        nprobe: IVF cells that are searched for each query; more is slower and finds more.
        seed: of the IVF clustering and of the sample on which recall is measured.
        budget: memory to keep to, with copies of the features and the index on disk; None holds all
            in memory.
        index_kind: with a budget: `exact`, `ivf`, `pq`, or `auto` by size.
        recall: with a budget: share of the true neighbours to find; nprobe follows from it.
        share: other ranks that `assist`, and blocks that survive a kill; None searches here.

    Returns:
        Neighbours of all samples, with recall if the search was approximate.

    >>> near = nearest([[1, 0], [1, 0], [1, 1], [0, 0]], k=2)
    >>> near.index.tolist()
    [[1, 2], [0, 2], [0, 1], [-1, -1]]
    >>> near.similarity[2].round(3).tolist()
    [0.7070000171661377, 0.7070000171661377]
    """
    for name, value in (("k", k), ("nprobe", nprobe)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}", hint=f"set {name} to 1 or more")
    unit, groups, base = _unit_groups(features, budget)
    n = len(unit)
    width = min(k + 1, len(base))  # one more: a vector finds itself
    found_share: float | None = None
    lists: Lists | None = None
    exact = n < exact_below or len(base) < 2
    if budget is not None:
        exact = index_kind == "exact" or (index_kind == "auto" and exact) or len(base) < 2
    if exact:
        search = _exact(base, budget)
    elif budget is not None:
        search, found_share, lists = index_search(
            base, width, budget, kind=index_kind, recall=recall, seed=seed
        )
    else:
        search, lists = _inverted_lists(base.array, nprobe, seed, share)
        found_share = _recall(search, base, width, seed)
    empty = budget.array if budget is not None else _in_memory
    similarity = empty("similarity", (len(base), width))
    hits = empty("hits", (len(base), width), np.int32)
    if share is None:
        for start in range(0, len(base) if width else 0, BLOCK):
            part = slice(start, start + BLOCK)
            similarity[part], hits[part] = search(base[part], width)
    else:
        if share.team.count > 1:
            share.team.meet(_Task(_published(base, share), width, lists))
        start = 0
        for searched in _shared(search, base, width, share):
            part = slice(start, start + len(searched))
            similarity[part], hits[part] = searched["similarity"], searched["hits"]
            start += len(searched)
    del search  # an index frees its lists

    index = empty("pool", (n, k), np.int32)
    cosine = empty("pool-similarity", (n, k))
    for start in range(0, n, ROWS):
        rows = np.arange(start, min(start + ROWS, n))
        part = slice(start, start + ROWS)
        index[part], cosine[part] = -1, -np.inf
        found = np.flatnonzero(groups.of_row[part] >= 0)
        place = groups.of_row[part][found]
        block = groups.expand(rows[found], hits[place], similarity[place], k)
        index[part][found], cosine[part][found] = block
    release(hits, similarity, index, cosine, unit)
    return Neighbors(index, cosine, found_share)


def assist(share: Share, budget: Budget | None = None) -> None:
    """What ranks beside the main one do while it is in `nearest`: search their blocks of queries.

    The vectors and the index are files that the main rank has made, and are mapped.
    """
    task: _Task = share.team.meet()[0]
    base = Reader(np.load(task.base, mmap_mode="r", allow_pickle=False), budget)
    lists = task.lists
    search = _exact(base, budget) if lists is None else lists_search(lists, base, budget)
    _shared(search, base, task.width, share)


def _published(base: Reader, share: Share) -> str:
    """The file of the vectors, for the other ranks."""
    if isinstance(base.array, np.memmap) and base.array.filename:
        base.array.flush()
        return str(base.array.filename)
    file = share.folder / "base.npy"
    write_array(file, base.array)
    return str(file)


def _shared(search: Search, base: Reader, width: int, share: Share) -> Iterator[NDArray[Any]]:
    """Search this rank's blocks; returns all blocks when every rank has done its own."""
    row = np.dtype([("similarity", np.float32, (width,)), ("hits", np.int32, (width,))])

    def compute(begin: int, end: int) -> NDArray[Any]:
        block = np.empty(end - begin, row)
        block["similarity"], block["hits"] = search(base[begin:end], width)
        return block

    shards = planned(share.folder, len(base), key=share.key, size=BLOCK)
    sharded(shards, compute, team=share.team)
    share.team.meet()
    return shards.blocks()


def _in_memory(_name: str, shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> NDArray[Any]:
    return np.empty(shape, dtype)


def _unit_groups(features: ArrayLike, budget: Budget | None) -> tuple[Floats, _Groups, Reader]:
    """Unit rows, groups of equal rows, and one row of each group."""
    table = _table(features, "features")
    unit = unit_rows(table, out=None if budget is None else budget.array("unit", table.shape))
    release(table)
    groups = _Groups.of(unit)
    release(unit)
    if len(groups.first) == len(unit):
        return unit, groups, Reader(unit, budget)
    if budget is None:
        return unit, groups, Reader(unit[groups.first], None)
    base = budget.array("base", (len(groups.first), unit.shape[1]))
    for start in range(0, len(base), ROWS):
        base[start : start + ROWS] = unit[groups.first[start : start + ROWS]]
    release(base, unit)
    return unit, groups, Reader(base, budget)


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


def _exact(base: Reader, budget: Budget | None = None) -> Search:
    import faiss

    if budget is not None:
        return exact_search(base, budget)

    def search(queries: Floats, width: int) -> tuple[Floats, NDArray[np.int64]]:
        # the search of IndexFlatIP without the index's copy of the features
        found: tuple[Floats, NDArray[np.int64]] = faiss.knn(
            queries, base.array, width, metric=faiss.METRIC_INNER_PRODUCT
        )
        return found

    return search


def _inverted_lists(base: Floats, nprobe: int, seed: int, share: Share | None) -> tuple[Search, Lists | None]:
    """An index in memory; with other ranks also in a file."""
    import faiss

    n, d = base.shape
    cells = max(1, min(int(4 * math.sqrt(n)), n // 39))  # k-means wants 39 points per cell
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed + 1  # 0 is not a seed there
    index.train(base)
    index.add(base)
    index.nprobe = min(nprobe, cells)

    def search(queries: Floats, width: int) -> tuple[Floats, NDArray[np.int64]]:
        found: tuple[Floats, NDArray[np.int64]] = index.search(queries, width)
        return found

    if share is None or share.team.count == 1:
        return search, None
    file = share.folder / "ivf.index"
    with atomic_path(file) as temporary:
        faiss.write_index(index, str(temporary))
    return search, Lists("ivf", (str(file),), index.nprobe)


def _recall(search: Search, base: Reader, width: int, seed: int) -> float:
    """Share of the true nearest others that `search` finds, on a sample of rows."""
    n = len(base)
    sample = np.random.default_rng(seed).choice(n, min(RECALL_SAMPLE, n), replace=False)
    truth = _exact(base)(base[sample], width)[1]
    found = search(base[sample], width)[1]
    other = truth != sample[:, None]
    hit = (truth[:, :, None] == found[:, None, :]).any(axis=2)
    return float(hit[other].mean())
