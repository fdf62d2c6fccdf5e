"""A memory budget; search and smoothing within one give what they give without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.errors import ConfigError
from capro.graph import ondisk
from capro.graph.neighbors import nearest, unit_rows
from capro.graph.ondisk import LEAST_BYTES, Budget, RowReader, release
from capro.graph.smooth import enhance, smooth, smoothing_operator
from tests.graph.test_smooth import csr_array


def clusters(n: int, d: int, seed: int = 0, size: int = 20) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, n // size), d))
    picked = centres[rng.integers(0, len(centres), n)]
    return (picked + 0.6 * rng.standard_normal((n, d))).astype(np.float32)


@pytest.mark.parametrize("copies", [False, True])
def test_exact_search_within_a_budget_is_exact_search(budget: Budget, copies: bool) -> None:
    x = clusters(600, 24)
    if copies:
        x[100:160] = x[:60]
        x[200:220] = 0
    whole, blocked = nearest(x, 8), nearest(x, 8, budget=budget)
    np.testing.assert_allclose(blocked.similarity, whole.similarity, atol=1e-6)
    assert (blocked.index == whole.index).mean() > 0.999  # ties to the last bit may differ
    assert blocked.recall is None
    assert isinstance(blocked.index, np.memmap)


@pytest.mark.parametrize("kind", ["ivf", "pq"])
def test_indexes_on_disk_reach_the_recall_and_say_so(budget: Budget, kind: str) -> None:
    budget = Budget(1 << 20, budget.folder)  # two shards, and enough rows to cluster
    x = clusters(3000, 16)
    found = nearest(x, 8, budget=budget, index_kind=kind, recall=0.95)  # type: ignore[arg-type]
    assert found.recall is not None
    assert found.recall >= 0.95
    truth = nearest(x, 8)
    hits = (found.index[:, :, None] == truth.index[:, None, :]).any(axis=2)
    assert hits.mean() == pytest.approx(found.recall, abs=0.03)
    assert (found.index != np.arange(3000)[:, None]).all()
    assert (np.diff(found.similarity, axis=1) <= 0).all()
    unit = unit_rows(x)
    for row in range(0, 3000, 500):  # distances are those of the vectors, not of codes
        cosine = unit[found.index[row]] @ unit[row]
        np.testing.assert_allclose(found.similarity[row], cosine, atol=1e-5)
    again = nearest(x, 8, budget=budget, index_kind=kind, recall=0.95)  # type: ignore[arg-type]
    assert np.array_equal(again.index, found.index)


def test_a_higher_recall_searches_more_cells(budget: Budget) -> None:
    x = np.random.default_rng(0).standard_normal((3000, 16)).astype(np.float32)  # no clusters
    reader = RowReader(unit_rows(x), budget)
    low, high = (
        ondisk.index_search(reader, 9, budget, kind="ivf", recall=share).recall for share in (0.3, 0.99)
    )
    assert 0.3 <= low < 0.99 <= high  # type: ignore[operator]


def test_the_search_is_by_size(budget: Budget) -> None:
    x = clusters(500, 8)
    assert nearest(x, 4, budget=budget, exact_below=501).recall is None
    assert nearest(x, 4, budget=budget, exact_below=500).recall is not None
    assert nearest(x, 4, budget=budget, exact_below=500, index_kind="exact").recall is None


@pytest.mark.parametrize("enhancer", ["none", "knn", "reciprocal"])
def test_enhanced_texts_are_the_same_within_a_budget(budget: Budget, enhancer: str) -> None:
    x, texts = clusters(400, 12), clusters(400, 20, seed=1)
    texts[::7] = 0
    whole = enhance(x, texts, enhancer=enhancer, k=4)  # type: ignore[arg-type]
    blocked = enhance(x, texts, enhancer=enhancer, k=4, budget=budget)  # type: ignore[arg-type]
    np.testing.assert_allclose(blocked.texts, whole.texts, atol=1e-5)
    assert isinstance(blocked.texts, np.memmap)


def test_smoothing_reads_mapped_texts_by_block(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capro.graph.smooth.ROWS", 16)
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((90, 90)) < 0.1, 1) * rng.random((90, 90))
    operator = smoothing_operator(csr_array((dense + dense.T).astype(np.float32)))
    texts = budget.array("t", (90, 50))
    texts[:] = rng.standard_normal(texts.shape)
    expected = operator.toarray() @ np.array(texts)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(smooth(operator, texts, budget=budget), expected, atol=1e-5)


# --- the budget -----------------------------------------------------------------------------------


def test_a_tiny_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.001 GB of memory is too little") as caught:
        Budget(1 << 20, tmp_path)
    assert "match.memory_gb" in caught.value.hint
    assert Budget(LEAST_BYTES, tmp_path).bytes == LEAST_BYTES


def test_arrays_are_files_where_they_are_large(budget: Budget) -> None:
    small, large = budget.array("a", (2, 3)), budget.array("a", (1000, 30))
    again = budget.array("a", (1000, 30))
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    assert isinstance(again, np.memmap)
    assert large.filename != again.filename


def test_released_pages_keep_their_values(budget: Budget) -> None:
    array = budget.array("x", (1000, 30))
    values = np.random.default_rng(0).standard_normal(array.shape).astype(np.float32)
    array[:] = values
    release(array, array[10:20], np.zeros(3), None)
    assert np.array_equal(array, values)
    assert np.array_equal(np.load(str(array.filename)), values)  # flushed to the file as well
    reader = RowReader(array, budget)
    for start in range(0, 1000, 100):
        assert np.array_equal(reader[start : start + 100], values[start : start + 100])
    rows = np.array([5, 900, 5, 17])
    assert np.array_equal(reader[rows], values[rows])
