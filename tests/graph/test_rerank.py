from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from capro.errors import ConfigError
from capro.graph import rerank as module
from capro.graph.neighbors import Neighbors, nearest
from capro.graph.rerank import encoding, jaccard_distance, rerank
from tests.graph import reference
from tests.graph.reference import vectors


def test_a_hand_value():
    # 0 and 1 share their one mutual neighbour 2: V_02 = exp(-0.2), V_12 = exp(-0.4)
    index = np.array([[2], [2], [0]])
    near = Neighbors(index, np.array([[0.8], [0.6], [0.8]], np.float32))
    assert (encoding(near, 1) != 0).toarray().tolist() == [
        [False, False, True],
        [False, False, False],
        [True, False, False],
    ]
    V = csr_array(np.array([[0, 0, np.exp(-0.2)], [0, 0, np.exp(-0.4)], [0, 0, 0]]))
    d_J = jaccard_distance(V, np.array([0, 0, 2]), np.array([1, 2, 2]))
    np.testing.assert_allclose(d_J, [1 - np.exp(-0.2), 1, 1], atol=1e-6)


@given(vectors(), st.integers(1, 6))
def test_encoding_equals_a_loop(x, k):
    near = nearest(x, 4 * k)
    V = encoding(near, k)
    np.testing.assert_allclose(V.toarray(), reference.encoding(near.index, near.similarity, k), atol=1e-5)
    assert (V != V.T).nnz == 0
    assert [set(V[[i]].indices.tolist()) for i in range(len(x))] == reference.reciprocal(near.index, k)
    assert not V.diagonal().any()


@given(vectors(), st.integers(1, 6))
def test_jaccard_equals_a_loop(x, k):
    V = encoding(nearest(x, k), k)
    n = len(x)
    rows, cols = np.divmod(np.arange(n * n), n)
    loops = [reference.jaccard(V.toarray(), i, j) for i, j in zip(rows, cols, strict=True)]
    np.testing.assert_allclose(jaccard_distance(V, rows, cols), loops, atol=1e-5)


def test_with_itself_a_sample_has_one_entry_more():
    near = Neighbors(np.array([[1], [0], [1]]), np.array([[0.8], [0.8], [0.6]], np.float32))
    V = encoding(near, 1, own=True)
    e = np.exp(-0.2)
    np.testing.assert_allclose(V.toarray(), [[1, e, 0], [e, 1, 0], [0, 0, 1]], atol=1e-6)
    # 0 and 1 share both entries: minima e and e, maxima 1 and 1. Without themselves they share nothing.
    pair = np.array([0]), np.array([1])
    np.testing.assert_allclose(jaccard_distance(V, *pair), [1 - e], atol=1e-6)
    assert jaccard_distance(encoding(near, 1), *pair).tolist() == [1.0]


@given(vectors(), st.integers(1, 6), st.booleans())
def test_rerank_equals_a_loop(x, k, own):
    pool = nearest(x, 4 * k)
    result = rerank(pool, k, own=own)
    for i, d_star in enumerate(reference.refined(pool.index, pool.similarity, k, own=own)):
        best = sorted(d_star.values())[:k]
        named = [j for j in result.index[i].tolist() if j >= 0]
        assert len(set(named)) == len(named) == len(best)
        # rounding decides which of two equal distances comes first, not which distance is whose
        np.testing.assert_allclose([d_star[j] for j in named], best, atol=1e-5)
        place = {j: m for m, j in enumerate(pool.index[i].tolist())}
        assert [result.similarity[i, m] for m in range(len(named))] == [
            pool.similarity[i, place[j]] for j in named
        ]


def test_blocks_do_not_matter(monkeypatch):
    x = np.random.default_rng(0).normal(size=(120, 6))
    pool = nearest(x, 20)
    whole = rerank(pool, 5)
    monkeypatch.setattr(module, "PAIRS", 37)
    parts = rerank(pool, 5)
    np.testing.assert_array_equal(whole.index, parts.index)
    np.testing.assert_array_equal(whole.similarity, parts.similarity)


def test_reranking_prefers_the_shared_neighbourhood():
    # two groups on a line, and a bridge that is nearer to 0 than 0's own group is
    angle = np.radians([0, 10, 12, 14, -9, -19, -20, -21])
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pool = nearest(x, 7)
    assert pool.index[0, 0] == 4
    assert rerank(pool, 3).index[0, 0] in {1, 2, 3}


def test_ties_keep_the_order_of_the_pool():
    # each lists the 40 after it in a ring of 100: nobody is mutual, d* = (d + 1) / 2 has two values
    index = (np.arange(100)[:, None] + np.arange(1, 41)) % 100
    near = np.random.default_rng(0).random((100, 40)) < 0.2
    best = rerank(Neighbors(index, np.where(near, 0.5, 0.25).astype(np.float32)), 20)
    for i in range(100):
        order = [*index[i][near[i]], *index[i][~near[i]]]
        assert best.index[i].tolist() == order[:20]


@given(vectors(min_rows=3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_permutation_of_distinct_samples_permutes_the_result(x, k, random):
    x = x + np.random.default_rng(len(x)).normal(size=x.shape)  # no copies: ties go by index
    order = list(range(len(x)))
    random.shuffle(order)
    V, moved = encoding(nearest(x, 4 * k), k), encoding(nearest(x[order], 4 * k), k)
    np.testing.assert_allclose(V.toarray()[np.ix_(order, order)], moved.toarray(), atol=1e-5)


def test_messages():
    near = nearest(np.eye(4), 2)
    for function in (encoding, rerank):
        with pytest.raises(ConfigError, match="k = 3 neighbours of lists of 2") as error:
            function(near, 3)
        assert "search" in error.value.hint
