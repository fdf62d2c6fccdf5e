"""Scores of which only the highest are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capro.core import kept_scores
from capro.core.kept_scores import CLASS, KeptScores, keep, numbers_only
from capro.data.labels import MULTI_LABEL, SINGLE_LABEL
from capro.errors import RunError


@given(n=st.integers(0, 6), classes=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_few_classes_are_kept_whole(n: int, classes: int, seed: int) -> None:
    whole = np.random.default_rng(seed).random((n, classes), np.float32).round(1)  # with ties
    scores = KeptScores(keep({"a": whole, "b": 1 - whole}), "a", classes)
    assert np.array_equal(scores[:], whole)
    assert np.array_equal(np.asarray(scores), whole)
    assert np.array_equal(KeptScores(scores.entries, "b", classes)[:], 1 - whole)
    rows, columns = np.arange(n), np.full(n, classes - 1)
    assert np.array_equal(scores[rows, columns], whole[rows, columns])
    if n:
        assert np.array_equal(scores.argmax(axis=1), whole.argmax(axis=1))
        assert np.array_equal(scores.max(axis=1), whole.max(axis=1))
        assert np.array_equal(scores[0], whole[0])


def test_of_many_classes_the_highest_and_the_given_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_scores, "DENSE", 4)
    monkeypatch.setattr(kept_scores, "MOST", 3)
    whole = np.array([[0.1, 0.4, 0.05, 0.3, 0.15], [0.0, 0.0, 0.0, 0.0, 1.0]], np.float32)
    entries = keep({"a": whole}, SINGLE_LABEL.membership(np.array([2, -1]), 5))
    assert entries[CLASS][0].tolist() == [1, 3, 2]
    assert entries[CLASS][1, 0] == 4
    scores = KeptScores(entries, "a", 5, other=-1.0)
    assert scores[0].tolist() == pytest.approx([-1, 0.4, 0.05, 0.3, -1])
    assert scores[[0, 0], [2, 4]].tolist() == pytest.approx([0.05, -1])
    assert len(scores) == 2


def test_several_labels_keep_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_scores, "DENSE", 2)
    monkeypatch.setattr(kept_scores, "MOST", 2)
    entries = keep({"a": np.array([[0.9, 0.1, 0.8]])}, MULTI_LABEL.membership(np.array([[0, 1, 0]]), 3))
    assert entries[CLASS][0].tolist() == [0, 1]


def test_nan_is_refused_with_the_sample_and_how_many_there_are() -> None:
    scores = np.array([[0.5, 0.5], [0.1, np.nan], [np.nan, np.nan]], np.float32)
    with pytest.raises(
        RunError, match=r"model: sample cat-1 has nan as a score \(so have 2 of 3 samples\)"
    ) as caught:
        numbers_only(scores, place="model", name=["cat-0", "cat-1", "cat-2"].__getitem__)
    assert "lower learning rate" in caught.value.hint
    with pytest.raises(RunError, match="score 'fused': sample number 1 has nan"):
        keep({"fused": scores})
    for there in (scores[:1], scores[:0], scores[:1, 0], np.array([[-np.inf, 1.0]])):
        assert numbers_only(there) is there
