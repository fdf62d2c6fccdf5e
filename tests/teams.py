"""Ranks that are threads: enough for work that meets through `meet` and files alone."""

from __future__ import annotations

import threading
from typing import Any


class Thread:
    """One of several, as `capro.pipeline.shards.Team` has it."""

    def __init__(self, index: int, count: int, barrier: threading.Barrier, words: list[Any]):
        self.index, self.count = index, count
        self._barrier, self._words = barrier, words

    def meet(self, word: Any = None) -> list[Any]:
        self._barrier.wait(30)
        self._words[self.index] = word
        self._barrier.wait(30)
        return list(self._words)


def teams(count: int) -> list[Thread]:
    barrier, words = threading.Barrier(count), [None] * count
    return [Thread(index, count, barrier, words) for index in range(count)]
