from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.errors import ConfigError, DataError
from capro.graph import neighbors as module
from capro.graph.neighbors import nearest, row_norms, unit_rows
from tests.graph.reference import cosine, vectors


def clustered(n, d=16, clusters=20, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, d))
    return (centres[rng.integers(0, clusters, n)] + rng.normal(size=(n, d)) / 2).astype(np.float32)


def loop(x, k):
    """The k nearest others by a stable sort of all of them."""
    index, similarity = [], []
    for i in range(len(x)):
        others = [(cosine(x[i], x[j]), j) for j in range(len(x)) if j != i and x[i].any() and x[j].any()]
        best = sorted(others, key=lambda pair: (-round(pair[0], 6), pair[1]))[:k]
        fill = k - len(best)
        index.append([j for _, j in best] + [-1] * fill)
        similarity.append([s for s, _ in best] + [-np.inf] * fill)
    return np.array(index), np.array(similarity)


def test_a_hand_value():
    near = nearest([[2, 0], [1, 1], [0, 3], [-1, 0]], k=2)
    assert near.index.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    np.testing.assert_allclose(near.similarity[0], [0.5**0.5, 0], atol=1e-6)
    assert near.index.dtype == np.int32
    assert near.similarity.dtype == np.float32
    assert near.recall is None


@given(vectors(), st.integers(1, 9))
def test_equals_a_loop(x, k):
    near = nearest(x, k)
    index, similarity = loop(x, k)
    np.testing.assert_allclose(near.similarity, similarity, atol=1e-5)
    # other rows than copies may tie by chance only; then FAISS's rounding decides their order
    for i, row in enumerate(near.index):
        claimed = [cosine(x[i], x[j]) if j >= 0 else -np.inf for j in row]
        np.testing.assert_allclose(claimed, similarity[i], atol=1e-5)
        named = row[row >= 0].tolist()
        assert len(set(named)) == len(named)
        assert i not in named
    np.testing.assert_array_equal(near.index >= 0, index >= 0)


@given(vectors(min_rows=3, max_width=5), st.integers(1, 9))
def test_order_is_by_similarity_then_index(x, k):
    near = nearest(x, k)
    for index, similarity in zip(near.index, near.similarity, strict=True):
        pairs = [(-s, j) for s, j in zip(similarity, index, strict=True) if j >= 0]
        assert pairs == sorted(pairs)


@pytest.mark.parametrize("n", [3, 30, 300])
def test_many_copies_take_the_lowest_indices(n):
    x = np.tile(np.random.default_rng(0).normal(size=(1, 24)), (n, 1))
    near = nearest(x, k=5)
    for i in range(n):
        others = [j for j in range(n) if j != i][:5]
        assert near.index[i].tolist() == others + [-1] * (5 - len(others))
    assert set(near.similarity[near.index >= 0].tolist()) == {1.0}


def test_copies_of_several_vectors_equal_a_loop():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 8)).astype(np.float32)[rng.integers(0, 12, 200)]
    x[::17] = 0
    index, similarity = loop(x, 20)
    near = nearest(x, 20)
    np.testing.assert_array_equal(near.index, index)
    np.testing.assert_allclose(near.similarity, similarity, atol=1e-5)


def test_random_rows_equal_a_loop_across_blocks(monkeypatch):
    x = clustered(150)
    whole = nearest(x, 12)
    monkeypatch.setattr(module, "ROWS", 16)
    monkeypatch.setattr(module, "QUERIES", 32)
    near = nearest(x, 12)
    np.testing.assert_array_equal(near.index, loop(x, 12)[0])
    np.testing.assert_array_equal(near.index, whole.index)


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (5, 4)])
def test_no_others(shape):
    near = nearest(np.zeros(shape), k=3)
    assert (near.index == -1).all()
    assert near.index.shape == (shape[0], 3)
    assert np.isneginf(near.similarity).all()


def test_inverted_lists_report_their_recall(monkeypatch):
    x = clustered(4000, d=24, clusters=200)
    exact = nearest(x, 8)
    monkeypatch.setattr(module, "NPROBE", 10**6)
    many = nearest(x, 8, exact_below=1000)
    monkeypatch.setattr(module, "NPROBE", 1)
    few = nearest(x, 8, exact_below=1000)
    assert few.recall is not None
    found = np.mean([len(set(a) & set(b)) / 8 for a, b in zip(few.index, exact.index, strict=True)])
    assert few.recall == pytest.approx(found, abs=0.05)
    assert few.recall < 1
    assert many.recall == 1
    np.testing.assert_array_equal(many.index, exact.index)
    again = nearest(x, 8, exact_below=1000)
    np.testing.assert_array_equal(few.index, again.index)


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_inverted_lists_of_little(n):
    x = clustered(max(n, 1))[:n]
    assert nearest(x, 3, exact_below=0).index.tolist() == nearest(x, 3).index.tolist()


def test_unit_rows():
    x = np.array([[3e-30, 4e-30], [-0.0, 0.0], [3e30, -4e30]], np.float32)
    unit = unit_rows(x)
    np.testing.assert_allclose(unit, [[0.6, 0.8], [0, 0], [0.6, -0.8]], rtol=1e-6)
    assert not np.signbit(unit[1]).any()
    np.testing.assert_allclose(row_norms(x), [5e-30, 0, 5e30], rtol=1e-6)


def test_messages():
    with pytest.raises(DataError, match="features: row 1 holds NaN"):
        nearest([[1.0, 0.0], [np.nan, 1.0]], k=1)
    with pytest.raises(DataError, match=r"expected \(samples, width\), got shape \(3,\)"):
        nearest([1.0, 2.0, 3.0], k=1)
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        nearest([[1.0, 0.0]], k=0)
