"""Enhance texts through the visual graph; the neighbour search in blocks that a killed run does not lose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.graph.neighbors import QUERIES
from capro.graph.ondisk import Budget, Floats, Lists, RowReader, Search, Searcher, exact_search, lists_search
from capro.graph.smooth import enhance
from capro.pipeline.artefacts import ADJACENCY, ENHANCED_TEXTS, TEXTS, VISUAL, atomic_path, write_array
from capro.pipeline.checksums import fingerprint
from capro.pipeline.engine import THIS_PROCESS, Engine, Portable
from capro.pipeline.progress import Step
from capro.pipeline.shards import Compute, nothing, planned, sharded
from capro.pipeline.stage import Job


@dataclass(frozen=True)
class _FileSearch(Portable):
    """A search through files that the leading process has made; each process maps them once.

    Attributes:
        vectors: The file of the base, (n, d).
        lists: The files of the index; None is an exact search.
        width: Hits of a query.
        budget: Memory of each process.
    """

    vectors: str
    lists: Lists | None
    width: int
    budget: Budget | None

    @cached_property
    def _opened(self) -> tuple[Search, RowReader]:
        """How to search, and the base."""
        base = RowReader(np.load(self.vectors, mmap_mode="r", allow_pickle=False), self.budget)
        if self.lists is None:
            return exact_search(base, self.budget), base
        return lists_search(self.lists, base, self.budget), base

    def __call__(self, begin: int, end: int, step: Step) -> NDArray[Any]:
        search, base = self._opened
        return _block(search, base[begin:end], self.width, step)


def _block(search: Search, queries: Floats, width: int, step: Step) -> NDArray[Any]:
    """Similarities and hits of some queries, (b,), as they are kept."""
    row = np.dtype([("similarity", np.float32, (width,)), ("hits", np.int32, (width,))])
    block = np.empty(len(queries), row)
    block["similarity"], block["hits"] = search(queries, width)
    step(len(queries))
    return block


@dataclass(frozen=True)
class SharedSearch:
    """A `through` of `capro.graph.neighbors.nearest` that an engine does in blocks, which a killed run does not lose.

    Blocks of queries are the same for every engine, and so are the values.

    Attributes:
        folder: where blocks go, and what other processes search through.
        key: fingerprint of what decides the neighbours.
        engine: searches the blocks.
        budget: memory of each process that searches.
        progress: called with the rows that have been searched for.
    """

    folder: Path
    key: str
    engine: Engine = THIS_PROCESS
    budget: Budget | None = None
    progress: Step = nothing

    def __call__(
        self, searcher: Searcher, base: RowReader, width: int
    ) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
        """All blocks, in order."""

        def in_memory(begin: int, end: int, step: Step) -> NDArray[Any]:
            return _block(searcher.search, base[begin:end], width, step)

        compute: Compute = in_memory
        if self.engine.remote:
            compute = _FileSearch(self._vectors(base), self._lists(searcher), width, self.budget)
        shards = planned(self.folder, len(base), key=self.key, size=QUERIES)
        sharded(shards, compute, engine=self.engine, progress=self.progress)
        for block in shards.blocks():
            yield block["similarity"], block["hits"]

    def _vectors(self, base: RowReader) -> str:
        """The file of the vectors, for other processes."""
        if isinstance(base.array, np.memmap) and base.array.filename:
            base.array.flush()
            return str(base.array.filename)
        write_array(self.folder / "base.npy", base.array)
        return str(self.folder / "base.npy")

    def _lists(self, searcher: Searcher) -> Lists | None:
        """The files of the index, for other processes; None if the search is exact."""
        if searcher.index is None:
            return searcher.lists
        import faiss

        file = self.folder / "ivf.index"
        with atomic_path(file) as temporary:
            faiss.write_index(searcher.index, str(temporary))
        return Lists("ivf", (str(file),), searcher.index.nprobe)


def search_options(job: Job, scratch: Path) -> dict[str, Any]:
    """How neighbours are searched for in a run, with a folder for what does not fit into memory."""
    chosen = job.settings.match
    return {
        "exact_below": chosen.exact_below,
        "seed": job.settings.seed,
        "budget": Budget(int(chosen.memory_gb * 2**30), scratch) if chosen.memory_gb else None,
        "index_kind": chosen.index,
        "recall": chosen.recall,
    }


def work(job: Job) -> dict[str, Any]:
    chosen, visual = job.settings.match, job.read(VISUAL)
    search, key = job.folder / "search", fingerprint([job.key, chosen.memory_gb])
    with job.bar(f"graph ({chosen.enhancer})", len(visual)) as step, job.scratch() as scratch:
        options = search_options(job, scratch)
        options["through"] = SharedSearch(search, key, job.engine, options["budget"], step)
        how = chosen.model_dump(include={"enhancer", "k", "own_neighbour"})
        enhanced = enhance(visual, job.read(TEXTS), **how, **options)
    job.write(ENHANCED_TEXTS, enhanced.texts)
    job.remove(ADJACENCY)
    if enhanced.adjacency is not None:
        job.write(ADJACENCY, enhanced.adjacency)
    return {"recall": enhanced.recall}
