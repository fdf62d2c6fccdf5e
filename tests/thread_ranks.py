"""Ranks that are threads: enough for work that is exchanged by `Ranks.exchange` and files alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from capro.pipeline.engine import Engine, lead


class ThreadRank:
    """One of several, as `capro.pipeline.ranks.Ranks` is one."""

    def __init__(self, index: int, count: int, barrier: threading.Barrier, values: list[Any]):
        self.index, self.count, self.main = index, count, index == 0
        self._barrier, self._values = barrier, values

    def exchange(self, value: Any = None) -> list[Any]:
        self._barrier.wait(30)
        self._values[self.index] = value
        self._barrier.wait(30)
        return list(self._values)


def thread_ranks(count: int) -> list[ThreadRank]:
    barrier, values = threading.Barrier(count), [None] * count
    return [ThreadRank(index, count, barrier, values) for index in range(count)]


def led_by_threads(count: int, work: Callable[[Engine], Any]) -> Any:
    """What the main of so many ranks makes, while the others serve it."""
    main, *others = thread_ranks(count)
    threads = [threading.Thread(target=lead, args=(rank, work)) for rank in others]
    for thread in threads:
        thread.start()
    result = lead(main, work)  # type: ignore[arg-type]
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return result
