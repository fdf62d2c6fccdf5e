"""The launched ranks as an engine: in a stage that the main rank leads, the others do parts of its work.

The main rank takes as many items as there are ranks, each does one, and their results meet. What is exchanged goes
through `Team.meet` alone, so that a rank that fails finds the others at a meeting and all of them stop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from capro.pipeline.shards import Team

if TYPE_CHECKING:
    from capro.pipeline.ranks import Ranks

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RankEngine:
    """Items by all ranks; held by the main one, while the others `serve`.

    Attributes:
        ranks: The launched processes.
    """

    ranks: Team
    remote = True

    @property
    def threads(self) -> int:
        """A rank's share of this machine's cores."""
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.count))
        return max(1, (os.cpu_count() or 1) // here)

    def map(self, work: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> Iterator[R]:
        """As `capro.pipeline.engine.Engine.map`; to be read to its end, since the others wait for it."""
        del gpu  # each rank has its own device
        waiting = iter(items)

        def send(word: Any) -> list[T]:
            batch = list(islice(waiting, self.ranks.count))
            if batch:  # the others begin, while this rank still uses the results of the last items
                self.ranks.meet((word, batch[1:]))
            return batch

        batch = send(work)
        while batch:
            found = self.ranks.meet([work(batch[0])])
            size, batch = len(batch), send(None)
            yield from (each[0] for each in found[:size])


def serve(ranks: Team) -> None:
    """Do this rank's share of every `RankEngine.map` of the main one, until it has nothing more to share."""
    work: Callable[[Any], Any] | None = None
    while (sent := ranks.meet()[0]) is not None:
        new, batch = sent
        work = new or work
        assert work is not None, "the first items come with the work"
        mine = batch[ranks.index - 1 : ranks.index]
        ranks.meet([work(item) for item in mine])


def led(ranks: Ranks, work: Callable[[RankEngine], R]) -> R | None:
    """Work that the main rank leads; None on the others, which do what it gives its engine."""
    with ranks.together():
        if not ranks.main:
            serve(ranks)
            return None
        found = work(RankEngine(ranks))
        ranks.meet()
        return found
