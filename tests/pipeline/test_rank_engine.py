"""Ranks as an engine: the items of one process, in its order, shared by all; here ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capro.pipeline.rank_engine import RankEngine, serve


@dataclass
class Meeting:
    """Where threads exchange words as ranks do."""

    count: int
    words: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=20)

    def exchange(self, index: int, word: Any) -> list[Any]:
        self.words[index] = word
        self.barrier.wait()
        found = [self.words[rank] for rank in range(self.count)]
        self.barrier.wait()
        return found


@dataclass
class Rank:
    index: int
    meeting: Meeting

    @property
    def count(self) -> int:
        return self.meeting.count

    def meet(self, word: Any = None) -> list[Any]:
        return self.meeting.exchange(self.index, word)


def together(count: int, lead: Callable[[RankEngine], Any]) -> Any:
    """What the main rank makes, while the others serve it."""
    meeting = Meeting(count)
    others = [threading.Thread(target=serve, args=(Rank(index, meeting),)) for index in range(1, count)]
    for each in others:
        each.start()
    main = Rank(0, meeting)
    found = lead(RankEngine(main))
    main.meet()  # as a stage ends
    for each in others:
        each.join(20)
        assert not each.is_alive()
    return found


@given(count=st.integers(2, 4), sizes=st.lists(st.integers(0, 9), max_size=3))
@settings(deadline=None, max_examples=25)
def test_all_ranks_together_do_what_one_does(count: int, sizes: list[int]) -> None:
    def lead(engine: RankEngine) -> list[list[str]]:
        return [list(engine.map(lambda item, n=n: f"{n}:{item}", range(n))) for n in sizes]

    assert together(count, lead) == [[f"{n}:{item}" for item in range(n)] for n in sizes]


def test_each_rank_does_its_share_and_items_are_taken_as_needed() -> None:
    by: dict[int, str] = {}
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(7):
            taken.append(item)
            yield item

    def work(item: int) -> int:
        by[item] = threading.current_thread().name
        return -item

    def lead(engine: RankEngine) -> list[int]:
        found = engine.map(work, items())
        assert next(found) == 0
        assert taken == [0, 1, 2, 3, 4, 5]  # those of the next round, which the others have begun
        return list(found)

    assert together(3, lead) == [-1, -2, -3, -4, -5, -6]
    workers = [{by[item] for item in (start, start + 3)} for start in range(3)]
    assert all(len(each) == 1 for each in workers)
    assert len(set.union(*workers)) == 3
    assert by[6] == by[0]


@pytest.mark.parametrize(("cores", "local", "threads"), [(8, "2", 4), (2, "4", 1), (8, None, 4)])
def test_a_rank_has_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, local: str | None, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    assert RankEngine(Rank(0, Meeting(2))).threads == threads
