"""A neighbour search that several ranks share, in blocks that a killed run does not lose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.graph.budget import Budget, RowReader
from capro.graph.neighbors import QUERIES
from capro.graph.ondisk import Floats, Lists, Search, Searcher, exact_search, lists_search
from capro.run.artefacts import atomic_path, write_array
from capro.run.shards import Team, planned, sharded


@dataclass(frozen=True)
class SharedSearch:
    """A `through` of `capro.graph.neighbors.nearest`: the main rank gives it there, the others `assist`.

    Blocks of queries are the same for any number of ranks, and so are the values.

    Attributes:
        team: the ranks.
        folder: where blocks go, and what the main rank makes for the others; all see it.
        key: fingerprint of what decides the neighbours.
    """

    team: Team
    folder: Path
    key: str

    def __call__(
        self, found: Searcher, base: RowReader, width: int
    ) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
        """All blocks, once every rank has searched its own."""
        if self.team.count > 1:
            self.team.meet((self._vectors(base), width, self._lists(found)))
        for block in self._blocks(found.search, base, width):
            yield block["similarity"], block["hits"]

    def assist(self, budget: Budget | None = None) -> None:
        """Search this rank's blocks while the main one is in `nearest`.

        The vectors and the index are files that the main rank has made, and are mapped.
        """
        vectors, width, lists = self.team.meet()[0]
        base = RowReader(np.load(vectors, mmap_mode="r", allow_pickle=False), budget)
        search = exact_search(base, budget) if lists is None else lists_search(lists, base, budget)
        self._blocks(search, base, width)

    def _vectors(self, base: RowReader) -> str:
        """The file of the vectors, for the other ranks."""
        if isinstance(base.array, np.memmap) and base.array.filename:
            base.array.flush()
            return str(base.array.filename)
        write_array(self.folder / "base.npy", base.array)
        return str(self.folder / "base.npy")

    def _lists(self, found: Searcher) -> Lists | None:
        """The files of the index, for the other ranks; None if the search is exact."""
        if found.index is None:
            return found.lists
        import faiss

        file = self.folder / "ivf.index"
        with atomic_path(file) as temporary:
            faiss.write_index(found.index, str(temporary))
        return Lists("ivf", (str(file),), found.index.nprobe)

    def _blocks(self, search: Search, base: RowReader, width: int) -> Iterator[NDArray[Any]]:
        row = np.dtype([("similarity", np.float32, (width,)), ("hits", np.int32, (width,))])

        def compute(begin: int, end: int) -> NDArray[Any]:
            block = np.empty(end - begin, row)
            block["similarity"], block["hits"] = search(base[begin:end], width)
            return block

        shards = planned(self.folder, len(base), key=self.key, size=QUERIES)
        sharded(shards, compute, team=self.team)
        self.team.meet()
        return shards.blocks()
