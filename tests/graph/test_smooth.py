from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from capro.errors import ConfigError, DataError
from capro.graph import smooth as module
from capro.graph.neighbors import Neighbors, nearest, unit_rows
from capro.graph.rerank import rerank
from capro.graph.smooth import adjacency, enhance, smooth, smoothing_operator
from tests.graph import reference
from tests.graph.reference import cosine, vectors


@st.composite
def graphs(draw, max_nodes=8):
    """Symmetric non-negative weights with a zero diagonal."""
    n = draw(st.integers(1, max_nodes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    upper = np.triu(rng.random((n, n)) * (rng.random((n, n)) < draw(st.floats(0, 1))), 1)
    return csr_array((upper + upper.T).astype(np.float32))


def loop_enhance(x, texts, enhancer, k):
    """The whole enhancement in loops, from the pools on."""
    n = len(x)
    A = np.zeros((n, n))
    if enhancer == "knn":
        near = nearest(x, k).index
        for i in range(n):
            for j in near[i][near[i] >= 0]:
                A[i, j] = A[j, i] = max(0, cosine(x[i], x[j]))
    else:
        best = rerank(nearest(x, 4 * k), k).index  # itself tested against loops
        for i, mutual in enumerate(reference.reciprocal(best, k)):
            for j in mutual:
                A[i, j] = max(0, cosine(x[i], x[j]))
    unit = np.array([t / max(np.linalg.norm(t), 1e-300) for t in texts.astype(float)])
    return A, reference.smoothed(A, unit)


def test_a_hand_value():
    A = csr_array(np.array([[0, 3, 0], [3, 0, 0], [0, 0, 0]], np.float32))
    operator = smoothing_operator(A)
    np.testing.assert_allclose(operator.toarray(), [[0.25, 0.75, 0], [0.75, 0.25, 0], [0, 0, 1]], atol=1e-6)
    out = smooth(operator, np.array([[1, 0], [0, 1], [0, 0]]))
    np.testing.assert_allclose(out[0], np.array([1, 3]) / 10**0.5, atol=1e-6)
    assert out[2].tolist() == [0, 0]
    assert out.dtype == np.float32


@given(graphs())
def test_operator_equals_a_loop_and_is_symmetric(graph):
    operator = smoothing_operator(graph).toarray()
    n = len(operator)
    A = graph.toarray().astype(float) + np.eye(n)
    for i in range(n):
        for j in range(n):
            expected = A[i, j] / np.sqrt(A[i].sum() * A[j].sum())
            assert operator[i, j] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(operator, operator.T, atol=1e-6)


@given(graphs())
def test_smoothing_never_amplifies(graph):
    singular = np.linalg.norm(smoothing_operator(graph).toarray(), 2)
    assert singular <= 1 + 1e-5


@given(graphs(), vectors(min_rows=8, max_rows=8))
def test_smooth_equals_a_loop(graph, texts):
    texts = texts[: graph.shape[0]]
    out = smooth(smoothing_operator(graph), texts)
    A = graph.toarray()
    raw = smoothing_operator(graph).toarray().astype(float) @ texts
    sound = np.linalg.norm(raw, axis=1) > 1e-3  # opposite texts may cancel: nothing to normalise
    np.testing.assert_allclose(out[sound], reference.smoothed(A, texts)[sound], atol=1e-4)
    lengths = np.linalg.norm(out, axis=1)
    assert (np.isclose(lengths, 1, atol=1e-5) | (lengths == 0)).all()


@pytest.mark.parametrize("enhancer", ["knn", "reciprocal"])
@given(vectors(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_enhance_equals_a_loop(enhancer, x, k, seed):
    rng = np.random.default_rng(seed)
    texts = rng.normal(size=(len(x), 6)) * (rng.random((len(x), 1)) < 0.7)
    result = enhance(x, texts, enhancer=enhancer, k=k)
    A, expected = loop_enhance(x, texts, enhancer, k)
    assert result.adjacency is not None
    np.testing.assert_allclose(result.adjacency.toarray(), A, atol=1e-5)
    np.testing.assert_allclose(result.texts, expected, atol=1e-4)
    assert (result.adjacency != result.adjacency.T).nnz == 0
    assert not result.adjacency.diagonal().any()


@given(vectors())
def test_none_only_normalises(x):
    result = enhance(None, x, enhancer="none", k=3)
    np.testing.assert_array_equal(result.texts, unit_rows(x))
    assert result.adjacency is None
    assert result.recall is None


@pytest.mark.parametrize("enhancer", ["knn", "reciprocal"])
def test_an_isolated_sample_keeps_its_text_and_a_missing_text_is_filled(enhancer):
    x = np.array([[1, 0, 0], [1, 0.1, 0], [1, 0, 0.1], [0, 0, 0]])
    texts = np.array([[0, 0], [0, 2], [0, 1], [5, 0]])
    result = enhance(x, texts, enhancer=enhancer, k=2)
    assert result.texts.tolist() == [[0, 1], [0, 1], [0, 1], [1, 0]]


def test_one_sample():
    for enhancer in ("none", "knn", "reciprocal"):
        assert enhance([[1, 2]], [[0, 2]], enhancer=enhancer, k=3).texts.tolist() == [[0, 1]]


def test_opposite_neighbours_have_no_weight():
    near = Neighbors(np.array([[1], [0]]), np.array([[-0.5], [-0.5]], np.float32))
    assert adjacency(near).nnz == 0
    assert adjacency(near, mutual=False).nnz == 0


def test_approximate_search_passes_its_recall_on():
    x = np.random.default_rng(0).normal(size=(300, 4))
    assert enhance(x, x, enhancer="knn", k=2, exact_below=100).recall == 1.0


@pytest.mark.parametrize("enhancer", ["knn", "reciprocal"])
def test_a_permutation_of_samples_permutes_the_texts(enhancer):
    rng = np.random.default_rng(3)
    x, texts = rng.normal(size=(80, 8)), rng.normal(size=(80, 4))
    order = rng.permutation(80)
    whole = enhance(x, texts, enhancer=enhancer, k=4).texts
    moved = enhance(x[order], texts[order], enhancer=enhancer, k=4).texts
    np.testing.assert_allclose(moved, whole[order], atol=1e-5)


def test_blocks_do_not_matter(monkeypatch):
    rng = np.random.default_rng(3)
    x, texts = rng.normal(size=(80, 8)), rng.normal(size=(80, 4))
    whole = enhance(x, texts, enhancer="reciprocal", k=4).texts
    monkeypatch.setattr(module, "ROWS", 7)
    np.testing.assert_array_equal(enhance(x, texts, enhancer="reciprocal", k=4).texts, whole)


def test_messages():
    with pytest.raises(ConfigError, match="unknown enhancer 'reciprocl'") as error:
        enhance(np.eye(2), np.eye(2), enhancer="reciprocl", k=1)
    assert error.value.hint == "did you mean 'reciprocal'?"
    with pytest.raises(DataError, match="3 samples have features, 2 have texts"):
        enhance(np.eye(3), np.eye(2), enhancer="knn", k=1)
    with pytest.raises(DataError, match="texts: row 1 holds NaN"):
        enhance(np.eye(2), [[1, 0], [np.nan, 0]], enhancer="knn", k=1)
