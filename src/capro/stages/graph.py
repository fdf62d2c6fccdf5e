"""Enhance texts through the visual graph; the neighbour search in blocks that a killed run does not lose."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from capro.pipeline.engine import LOCAL, Engine, Portable
from capro.pipeline.progress import Step
from capro.pipeline.shards import Compute, Shards, Team, planned, sharded
from capro.pipeline.stage import Job


@dataclass(frozen=True)
class _FileSearch(Portable):
    """A search through files that the main process has made; each process maps them once.

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
    def opened(self) -> tuple[Search, RowReader]:
        """How to search, and the base."""
        base = RowReader(np.load(self.vectors, mmap_mode="r", allow_pickle=False), self.budget)
        if self.lists is None:
            return exact_search(base, self.budget), base
        return lists_search(self.lists, base, self.budget), base

    def __call__(self, begin: int, end: int) -> NDArray[Any]:
        search, base = self.opened
        return _block(search, base[begin:end], self.width)


def _block(search: Search, queries: Floats, width: int) -> NDArray[Any]:
    """Similarities and hits of some queries, (b,), as they are kept."""
    row = np.dtype([("similarity", np.float32, (width,)), ("hits", np.int32, (width,))])
    block = np.empty(len(queries), row)
    block["similarity"], block["hits"] = search(queries, width)
    return block


@dataclass(frozen=True)
class SharedSearch:
    """A `through` of `capro.graph.neighbors.nearest`: the main rank gives it there, the others `assist`.

    Blocks of queries are the same for any number of ranks or tasks, and so are the values.

    Attributes:
        team: the ranks.
        folder: where blocks go, and what the main rank makes for the others; all see it.
        key: fingerprint of what decides the neighbours.
        engine: who searches this rank's blocks.
        budget: memory of each process that searches.
        progress: called with the rows that this rank has searched for.
    """

    team: Team
    folder: Path
    key: str
    engine: Engine = LOCAL
    budget: Budget | None = None
    progress: Step = lambda _: None

    def __call__(
        self, found: Searcher, base: RowReader, width: int
    ) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
        """All blocks, once every rank has searched its own."""

        def compute(begin: int, end: int) -> NDArray[Any]:
            block = _block(found.search, base[begin:end], width)
            self.progress(end - begin)
            return block

        if self.team.count > 1 or self.engine.remote:
            files = _FileSearch(self._vectors(base), self._lists(found), width, self.budget)
            self.team.meet(files)
        for block in self._blocks(files if self.engine.remote else compute, len(base)):
            yield block["similarity"], block["hits"]

    def assist(self) -> None:
        """Search this rank's blocks while the main one is in `nearest`.

        The vectors and the index are files that the main rank has made, and are mapped.
        """
        files: _FileSearch = self.team.meet()[0]
        own = replace(files, budget=self.budget)
        self._blocks(own, len(own.opened[1]))

    def _vectors(self, base: RowReader) -> str:
        """The file of the vectors, for the others."""
        if isinstance(base.array, np.memmap) and base.array.filename:
            base.array.flush()
            return str(base.array.filename)
        write_array(self.folder / "base.npy", base.array)
        return str(self.folder / "base.npy")

    def _lists(self, found: Searcher) -> Lists | None:
        """The files of the index, for the others; None if the search is exact."""
        if found.index is None:
            return found.lists
        import faiss

        file = self.folder / "ivf.index"
        with atomic_path(file) as temporary:
            faiss.write_index(found.index, str(temporary))
        return Lists("ivf", (str(file),), found.index.nprobe)

    def own(self, count: int) -> int:
        """How many of so many rows this rank searches for."""
        return self._planned(count).rows(self.team)

    def _planned(self, count: int) -> Shards:
        return planned(self.folder, count, key=self.key, size=QUERIES)

    def _blocks(self, compute: Compute, count: int) -> Iterator[NDArray[Any]]:
        shards = self._planned(count)
        sharded(shards, compute, team=self.team, engine=self.engine, progress=self.progress)
        self.team.meet()
        return shards.blocks()


def search_options(job: Job, scratch: Path) -> dict[str, Any]:
    """How neighbours are searched for in a run, with a folder for what does not fit into memory."""
    chosen = job.settings.match
    return {
        "exact_below": chosen.exact_below,
        "seed": job.settings.seed,
        "budget": Budget.of(chosen.memory_gb, scratch),
        "index_kind": chosen.index,
        "recall": chosen.recall,
    }


def work(job: Job) -> dict[str, Any]:
    chosen, ranks = job.settings.match, job.ranks
    search = job.folder / "search"
    budget = Budget.of(chosen.memory_gb, job.folder / "scratch")
    shared = SharedSearch(ranks, search, fingerprint([job.key, chosen.memory_gb]), job.engine, budget)
    visual = job.read(VISUAL)
    if not ranks.main:
        if chosen.enhancer != "none":
            shared.assist()
        return {}
    with job.bar(f"graph ({chosen.enhancer})", shared.own(len(visual))) as step, job.scratch() as scratch:
        options = search_options(job, scratch) | {"through": replace(shared, progress=step)}
        how = chosen.model_dump(include={"enhancer", "k", "own_neighbour"})
        enhanced = enhance(visual, job.read(TEXTS), **how, **options)
    job.write(ENHANCED_TEXTS, enhanced.texts)
    job.remove(ADJACENCY)
    if enhanced.adjacency is not None:
        job.write(ADJACENCY, enhanced.adjacency)
    shutil.rmtree(search, ignore_errors=True)
    return {"recall": enhanced.recall}
