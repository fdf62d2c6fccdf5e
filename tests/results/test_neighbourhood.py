"""Outliers, near duplicates and the neighbours that lent their texts; cleanlab's values: test_verdicts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from capro.graph.neighbors import nearest
from capro.results.neighbourhood import lenders_of, neighbourhood, text_lenders


@given(st.integers(0, 1000))
def test_duplicates_go_both_ways_and_scores_lie_in_the_unit_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rng.integers(1, 12), 3))
    features[rng.integers(len(features))] = features[0]
    if seed % 5 == 0:
        features[-1] = 0
    found = neighbourhood(nearest(features, 4))
    for row, others in enumerate(found.duplicates):
        assert row not in others
        assert all(row in found.duplicates[other] for other in others)
    for score in (found.outlier_score, found.duplicate_score):
        assert ((score >= 0) & (score <= 1)).all()


def test_a_set_without_neighbours_is_all_outliers() -> None:
    found = neighbourhood(nearest([[0.0, 0.0], [0.0, 0.0]], 2))
    assert found.outlier_score.tolist() == [0, 0]
    assert [rows.tolist() for rows in found.duplicates] == [[], []]


def test_the_closest_lenders_come_first() -> None:
    parts = np.array([0.1, 0.9, 0.5]), np.array([7, 8, 9]), np.array([0, 3, 3])
    graph = csr_array(parts, shape=(2, 10))
    everybody = np.ones(10, bool)
    assert [lenders_of(graph, row, everybody).tolist() for row in (0, 1)] == [[8, 9, 7], []]
    without_eight = np.arange(10) != 8  # who has no text adds none
    assert lenders_of(graph, 0, without_eight).tolist() == [9, 7]
    square = csr_array(np.array([[0, 0.5], [0.5, 0]]))
    assert [rows.tolist() for rows in text_lenders(square, np.array([True, False]))] == [[], [0]]
    assert [rows.tolist() for rows in text_lenders(None, np.ones(2, bool))] == [[], []]
