"""Ranks that share a search find what one finds, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from capro.graph import neighbors
from capro.graph import ondisk as budgets
from capro.graph.neighbors import nearest
from capro.graph.ondisk import Budget
from capro.stages import graph
from capro.stages.graph import SharedSearch
from tests.graph.test_neighbors import clustered
from tests.thread_ranks import led_by_threads


def in_ranks(x, k, count: int, folder, *, memory: int | None, **options):
    """`nearest` on the main of several ranks, which are threads here; the others search blocks."""

    def work(engine):
        budget = None if memory is None else Budget(memory, folder / "scratch")
        shared = SharedSearch(folder / "search", "key", engine, budget)
        return nearest(x, k, budget=budget, through=shared, **options)

    return led_by_threads(count, work)


@pytest.mark.parametrize(
    ("memory", "options"),
    [
        (None, {}),
        (None, {"exact_below": 100}),
        (1 << 18, {}),
        (1 << 18, {"index_kind": "ivf"}),
        (1 << 18, {"index_kind": "pq"}),
    ],
    ids=["exact", "ivf", "budget", "budget-ivf", "budget-pq"],
)
def test_ranks_share_the_queries(tmp_path, monkeypatch, memory, options):
    """To the last bit, whatever their number: blocks of queries are the same."""
    for each in (neighbors, graph):
        monkeypatch.setattr(each, "QUERIES", 128)
    monkeypatch.setattr(neighbors, "NPROBE", 2)
    monkeypatch.setattr(budgets, "LEAST_BYTES", 0)
    x = clustered(1000, d=16)
    x[[4, 50]] = x[7]
    x[60] = 0
    kept = None if memory is None else Budget(memory, tmp_path / "one")
    one = nearest(x, 6, budget=kept, **options)
    for count in (1, 2, 3):
        folder = tmp_path / str(count)
        found = in_ranks(x, 6, count, folder, memory=memory, **options)
        np.testing.assert_array_equal(found.index, one.index)
        np.testing.assert_array_equal(found.similarity, one.similarity)
        assert found.recall == one.recall
        assert len(list((folder / "search").glob("shards-key-128/*.npy"))) == 8


def test_blocks_that_are_there_are_not_searched_again(tmp_path, monkeypatch):
    for each in (neighbors, graph):
        monkeypatch.setattr(each, "QUERIES", 128)
    x = clustered(500, d=16)
    whole = in_ranks(x, 6, 2, tmp_path, memory=None)
    shards = sorted((tmp_path / "search").glob("shards-*/*.npy"))
    shards[1].unlink()  # as if killed before
    times = [file.stat().st_mtime_ns for file in shards if file.exists()]
    again = in_ranks(x, 6, 3, tmp_path, memory=None)
    np.testing.assert_array_equal(again.index, whole.index)
    assert [f.stat().st_mtime_ns for f in shards if f != shards[1]] == times
