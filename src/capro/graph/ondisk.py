"""Neighbour search by FAISS: exact, an index in memory, or indexes on disk within a memory budget."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capro.errors import ConfigError
from capro.pipeline.files import writing

IN_MEMORY = 32  # an array below this share of the budget stays in memory
LEAST_BYTES = 64 << 20  # below, not even one block of rows fits


@dataclass(frozen=True)
class Budget:
    """How many bytes to use, and where to put the rest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget(1 << 30, Path(folder))
    ...     type(budget.array("s", (10, 4))).__name__, type(budget.array("l", (1 << 20, 32))).__name__
    ('ndarray', 'memmap')
    """

    bytes: int
    folder: Path

    def __post_init__(self) -> None:
        if self.bytes < LEAST_BYTES:
            raise ConfigError(
                f"match.memory_gb: {self.bytes / 2**30:.3f} GB of memory is too little for the graph",
                hint=f"give at least {LEAST_BYTES / 2**30:.2f} GB to match.memory_gb",
            )

    def array(self, name: str, shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> NDArray[Any]:
        """An array to fill: in memory if it is small, else a file of that name in the folder."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size * IN_MEMORY <= self.bytes or not size:
            return np.empty(shape, dtype)
        path = self.file(f"{name}.npy")
        with writing(path, needed=size):
            made: NDArray[Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            _reserve(path)
        return made

    def file(self, name: str) -> Path:
        """A path for a scratch file; the name is made unique."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(f"-{name}", dir=self.folder)
        os.close(descriptor)
        return Path(path)

    def rows(self, row_bytes: int, *, most: int) -> int:
        """Rows of a block that takes a 16th of the budget at most; at least one."""
        return max(1, min(most, self.bytes // 16 // max(1, row_bytes)))


def new_array(
    budget: Budget | None, name: str, shape: tuple[int, ...], dtype: type[np.generic] = np.float32
) -> NDArray[Any]:
    """An array to fill: `Budget.array`, or in memory without a budget."""
    return np.empty(shape, dtype) if budget is None else budget.array(name, shape, dtype)


def _reserve(path: Path) -> None:
    """Take a file's space now: where the disk is full, writing to a mapped file would end the process."""
    if not hasattr(os, "posix_fallocate"):
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot
            raise
    finally:
        os.close(descriptor)


def release(*arrays: Any) -> None:
    """Give the mapped pages of memory maps back to the system; values stay, in the file.

    A dirty page of a shared mapping goes to the page cache, not away.
    """
    for array in arrays:
        base = array
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "_mmap", None) or getattr(base, "base", None)
        if base is not None and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)


class RowReader:
    """Rows of an array, released after every share of the budget that has been read.

    Args:
        array: (n, d), in memory or mapped.
        budget: None never releases.
    """

    def __init__(self, array: NDArray[Any], budget: Budget | None) -> None:
        self.array = array
        self._limit = None if budget is None else budget.bytes // 8
        self._read = 0

    def __len__(self) -> int:
        return len(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self.array.shape

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """A copy of some rows."""
        if self._limit is None:
            return np.asarray(self.array[rows])
        copied = np.array(self.array[rows])
        # scattered rows touch a page each, whatever their width
        each = max(copied[:1].nbytes, 4096 if not isinstance(rows, slice) else 0)
        self._read += each * len(copied)
        if self._read > self._limit:
            release(self.array)
            self._read = 0
        return copied


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Search = Callable[[Floats, int], tuple[Floats, NDArray[np.int64]]]
Index = Literal["auto", "exact", "ivf", "pq"]

SAMPLE = 1000  # rows on which recall is measured; over 40 neighbours its standard error is below 0.005
PER_CELL = 40  # rows per cell that the clustering sees
ROUNDS = 10  # of k-means
REFINE = 4  # candidates per wanted neighbour that are measured exactly after `pq`
FIRST_PROBE = 8


@dataclass(frozen=True)
class Lists:
    """An index as its files: enough for another process to search in the same way."""

    kind: Literal["ivf", "pq"]
    files: tuple[str, ...]
    nprobe: int


@dataclass(frozen=True)
class Searcher:
    """How to search a base.

    Attributes:
        search: From queries (b, d) and a width w to similarities and rows of the base, (b, w) each.
        recall: Share of the true neighbours that it finds, on a sample; None if exact.
        index: FAISS's index, where it is in memory.
        lists: Its files, where it is on disk.
    """

    search: Search
    recall: float | None = None
    index: Any = None
    lists: Lists | None = None


def exact_search(base: RowReader, budget: Budget | None = None) -> Search:
    """Exact search; with a budget it holds one block of the base at a time."""
    import faiss

    n, d = base.shape
    step = max(n, 1) if budget is None else budget.rows(4 * d, most=max(n, 1))

    def search(queries: Floats, width: int) -> tuple[Floats, NDArray[np.int64]]:
        best = np.full((len(queries), width), -np.inf, np.float32)
        index = np.full((len(queries), width), -1, np.int64)
        for start in range(0, n, step):
            block = np.ascontiguousarray(base[start : start + step])
            # the search of IndexFlatIP without the index's copy of the features
            value, row = faiss.knn(queries, block, min(width, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
            best, index = (value, row) if len(block) == n else _merge(best, index, value, row + start)
        return best, index

    return search


def inverted_lists(base: RowReader, width: int, *, nprobe: int, seed: int) -> Searcher:
    """An IVF index in memory."""
    import faiss

    n, d = base.shape
    cells = max(1, min(int(4 * math.sqrt(n)), n // 39))  # k-means wants 39 points per cell
    index: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed + 1  # 0 is not a seed there
    index.train(base.array)
    index.add(base.array)
    index.nprobe = min(nprobe, cells)
    sample = np.random.default_rng(seed).choice(n, min(SAMPLE, n), replace=False)
    truth = exact_search(base)(base[sample], width)[1]
    return Searcher(index.search, _recall(index.search(base[sample], width)[1], truth, sample), index)


def _recall(hits: NDArray[np.int64], truth: NDArray[np.int64], sample: NDArray[np.int64]) -> float:
    """Share of the true nearest others that were found."""
    is_hit = (truth[:, :, None] == hits[:, None, :]).any(axis=2)
    return float(is_hit[truth != sample[:, None]].mean())


def _merge(
    best: Floats, index: NDArray[np.int64], value: Floats, row: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """The best of two lists of hits, (b, w) and (b, w')."""
    width = best.shape[1]
    values, rows = np.hstack([best, value]), np.hstack([index, row])
    order = np.argsort(-values, axis=1, kind="stable")[:, :width]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(rows, order, axis=1)


def index_search(
    base: RowReader, width: int, budget: Budget, *, kind: Index = "auto", recall: float = 0.95, seed: int = 0
) -> Searcher:
    """Build an index on disk, and tune its search to a recall.

    Args:
        base: (n, d), unit rows.
        width: Neighbours that will be asked for; recall is measured on as many.
        budget: Memory, and where the lists go.
        kind: `ivf`, `pq`, or `auto`: `ivf` where its lists are a quarter of the budget at most.
        recall: Share of the true neighbours to find on the sample; the search gives its best where
            that is out of reach.
        seed: Of clustering and sample.
    """
    n, d = base.shape
    rng = np.random.default_rng(seed)
    chosen: Literal["ivf", "pq"] = "pq" if kind == "pq" else "ivf"
    if kind == "auto" and 4 * n * d > budget.bytes // 4:
        chosen = "pq"
    files = _build(base, budget, chosen, rng, seed)
    sample = np.sort(rng.choice(n, min(SAMPLE, n), replace=False))
    queries = np.ascontiguousarray(base[sample])
    truth = exact_search(base, budget)(queries, width)[1]
    index = _open(files)
    search = index.search if chosen == "ivf" else _refined(index, base, budget)
    reached, probe = 0.0, FIRST_PROBE
    while True:
        index.nprobe = min(probe, index.nlist)
        before, reached = reached, _recall(search(queries, width)[1], truth, sample)
        # what a doubling no longer raises is lost to the codes, not to the cells
        if reached >= recall or index.nprobe == index.nlist or reached - before < 1e-3:
            break
        probe *= 2
    return Searcher(search, reached, lists=Lists(chosen, files, index.nprobe))


def lists_search(lists: Lists, base: RowReader, budget: Budget | None) -> Search:
    """The search of an index that another process has built."""
    index = _open(lists.files)
    index.nprobe = lists.nprobe
    return index.search if lists.kind == "ivf" or budget is None else _refined(index, base, budget)


def _open(files: tuple[str, ...]) -> Any:
    """Map an index; several files are searched as one."""
    import faiss

    index: Any = faiss.read_index(files[0], faiss.IO_FLAG_MMAP)
    if len(files) == 1:
        return index
    maps: list[Any] = [faiss.read_index(file, faiss.IO_FLAG_MMAP) for file in files]
    lists = getattr(faiss, "InvertedListsPtrVector")()  # noqa: B009 - its stubs lack it
    for one in maps:
        lists.push_back(one.invlists)
    stacked = faiss.HStackInvertedLists(lists.size(), lists.data())
    index.replace_invlists(stacked)
    index.ntotal = sum(one.ntotal for one in maps)
    index.referenced_objects = (maps, stacked)  # they own the lists, and must live as long as the index
    return index


def _build(
    base: RowReader, budget: Budget, kind: str, rng: np.random.Generator, seed: int
) -> tuple[str, ...]:
    """Train an index and write its lists; returns the files."""
    import faiss

    n, d = base.shape
    cells = max(1, min(int(8 * math.sqrt(n)), n // 39))  # k-means wants 39 points per cell
    quantizer = faiss.IndexFlatIP(d)
    index: Any
    if kind == "pq":
        parts = max(part for part in range(1, max(2, d // 2 + 1)) if d % part == 0)
        bits = 8 if n >= 39 * 256 else 4
        index = faiss.IndexIVFPQ(quantizer, d, cells, parts, bits, faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.seed = seed + 1
        index.pq.cp.niter = ROUNDS
    else:
        index = faiss.IndexIVFFlat(quantizer, d, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.niter = seed + 1, ROUNDS  # 0 is not a seed there
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, PER_CELL
    fits = max(cells, budget.bytes // 8 // (4 * d))
    chosen = np.sort(rng.choice(n, min(n, PER_CELL * cells, fits), replace=False))
    index.train(np.ascontiguousarray(base[chosen]))
    # whole shards are built in memory, written and mapped: FAISS's lists that grow on disk move
    # their entries again and again, and print to stdout as they do
    step = budget.rows(8 * d, most=1 << 17)
    shard = max(step, budget.bytes // 8 // (index.code_size + 8))
    files: list[str] = []
    for begin in range(0, n, shard):
        end = min(begin + shard, n)
        for start in range(begin, end, step):
            block = np.ascontiguousarray(base[start : min(start + step, end)])
            index.add_with_ids(block, np.arange(start, start + len(block)))
        files.append(str(budget.file(f"{kind}.index")))
        faiss.write_index(index, files[-1])
        index.reset()
    return tuple(files)


def _refined(index: Any, base: RowReader, budget: Budget) -> Search:
    """Search by codes, then measure the best candidates with their vectors."""

    def search(queries: Floats, width: int) -> tuple[Floats, NDArray[np.int64]]:
        value = np.full((len(queries), width), -np.inf, np.float32)
        row = np.full((len(queries), width), -1, np.int64)
        many = min(REFINE * width, len(base))
        step = budget.rows(8 * many * queries.shape[1], most=max(1, len(queries)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            _, candidates = index.search(queries[part], many)
            needed, where = np.unique(candidates, return_inverse=True)
            vectors = base[np.maximum(needed, 0)]  # (u, d)
            gathered = vectors[where.reshape(candidates.shape)]  # (b, many, d)
            cosine = np.einsum("bmd,bd->bm", gathered, queries[part])
            cosine[candidates < 0] = -np.inf
            value[part], row[part] = _merge(value[part], row[part], cosine, candidates)
        return value, row

    return search
