from __future__ import annotations

import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.errors import RunError
from capro.pipeline import shards as module
from capro.pipeline.progress import Step
from capro.pipeline.shards import chosen_rows, planned, sharded, wait_until, write_rows
from tests.thread_ranks import led_by_threads


@given(
    count=st.integers(0, 23), size=st.integers(1, 9), fail_at=st.integers(0, 30),
    ranks=st.integers(1, 3),
)  # fmt: skip
def test_shards_survive_a_kill(
    tmp_path_factory: pytest.TempPathFactory, count: int, size: int, fail_at: int, ranks: int
) -> None:
    """Each row is computed once, by one rank, though the work stops once and goes on."""
    folder = tmp_path_factory.mktemp("shards")
    whole = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    computed: list[int] = []

    def compute(begin: int, end: int, step: Step) -> np.ndarray:
        step(end - begin)
        if begin >= fail_at and not computed.count(-1):
            computed.append(-1)
            raise KeyboardInterrupt
        computed.extend(range(begin, end))
        return whole[begin:end]

    wanted = planned(folder, count, key="k", size=size)
    with suppress(KeyboardInterrupt):
        sharded(wanted, compute)
    counted: list[int] = []
    led_by_threads(ranks, lambda engine: sharded(wanted, compute, engine=engine, progress=counted.append))
    assert sum(counted) == count
    assert sorted(row for row in computed if row >= 0) == list(range(count))
    target = folder / "whole.npy"
    write_rows(target, whole.shape, wanted.blocks())
    np.save(folder / "expected.npy", whole)
    assert target.read_bytes() == (folder / "expected.npy").read_bytes()
    if count:
        np.testing.assert_array_equal(wanted.whole(), whole)
    other = planned(folder, count, key="other", size=size)
    sharded(other, lambda begin, end, _: whole[begin:end])
    assert [path.name for path in folder.glob("shards-*")] == [f"shards-other-{size}"]


def test_shards_of_another_size_are_not_taken(tmp_path: Path) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(6, 2)
    sharded(planned(tmp_path, 6, key="k", size=4), lambda begin, end, _: whole[begin:end])
    again = sharded(planned(tmp_path, 6, key="k", size=3), lambda begin, end, _: whole[begin:end])
    np.testing.assert_array_equal(again.whole(), whole)


def test_rows_are_written_without_holding_them(tmp_path: Path) -> None:
    rows, width = 20_000, 100  # 8 MB
    source = np.lib.format.open_memmap(tmp_path / "in.npy", "w+", np.float32, (rows, width))
    source[:] = np.random.default_rng(0).random((rows, width))
    order = np.random.default_rng(0).permutation(rows)
    tracemalloc.start()
    blocks = chosen_rows(source, order, size=500)
    write_rows(tmp_path / "out.npy", (2, rows // 2, width), blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6
    found = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(found.reshape(rows, width), source[order])


def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = np.zeros((2, 3), np.float32)
    for shape, message in (((2, 4), "rows of shape"), ((3, 3), "2 rows do not fill")):
        with pytest.raises(RunError, match=message):
            write_rows(tmp_path / "a.npy", shape, [block])
    assert not list(tmp_path.iterdir())
    wanted = planned(tmp_path, 4, key="k", size=2)
    with pytest.raises(RunError, match="got 3 rows, expected 2"):
        sharded(wanted, lambda _begin, _end, _step: np.zeros((3, 1)))
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with pytest.raises(RunError, match="this one does not see it") as caught:
        wanted.whole()
    assert "a file system that all hosts share" in caught.value.hint


def test_what_a_host_sees_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    looks = iter([False, False, True])
    wait_until(lambda: next(looks), "never")
