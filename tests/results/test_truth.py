"""Noise detection measured on truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_score, recall_score

from capro.results.metrics import wilson
from capro.results.truth import noise_detection, score_quality, true_labels


def test_one_label_by_hand() -> None:
    member = np.eye(3, dtype=bool)[[0, 1, 2, 0, 1]]
    before = np.array([0, 1, 0, 1, 1])  # samples 2 and 3 are wrong
    after = np.array([0, -1, 2, 1, 1])  # 1 dropped although right, 2 corrected, 3 missed
    found = noise_detection(before, after, member)
    assert found == pytest.approx(
        {"noise": 0.4, "called": 0.4, "precision": 0.5, "recall": 0.5, "f1": 0.5, "corrected": 1.0}
    )


def test_several_labels_by_hand() -> None:
    member = np.array([[1, 0, 1], [0, 1, 0]], dtype=bool)
    before = np.array([[1, 1, 0], [1, 1, 0]])  # wrong: (0, 1) and (1, 0); missing: (0, 2)
    after = np.array([[1, 0, 1], [1, 1, 1]])  # removed (0, 1); added (0, 2) rightly, (1, 2) not
    found = noise_detection(before, after, member)
    assert found["precision"] == 1.0
    assert found["recall"] == 0.5
    assert found["corrected"] == 0.5
    assert found["found"] == 1.0


def test_a_sample_that_is_out_has_its_labels_called() -> None:
    found = noise_detection(np.array([[1, 0]]), np.array([[-1, -1]]), np.array([[True, False]]))
    assert (found["called"], found["precision"]) == (1.0, 0.0)


def test_nothing_called_has_no_precision() -> None:
    same = np.array([0, 1])
    found = noise_detection(same, same, np.eye(2, dtype=bool))
    assert np.isnan(found["precision"])
    assert np.isnan(found["recall"])
    assert found["noise"] == 0


@given(st.integers(0, 10_000), st.booleans())
def test_noise_detection_equals_scikit_learn(seed: int, several: bool) -> None:
    rng = np.random.default_rng(seed)
    member = rng.random((30, 4)) < 0.4
    if several:
        before = (rng.random((30, 4)) < 0.5).astype(np.int64)
        after = np.where(rng.random((30, 4)) < 0.3, 1 - before, before)
        after[rng.random(30) < 0.1] = -1
        given_ = before > 0
        wrong, called = ~member[given_], (after <= 0)[given_]
    else:
        before, after = rng.integers(0, 4, 30), rng.integers(-1, 4, 30)
        wrong, called = ~member[np.arange(30), before], after != before
    found = noise_detection(before, after, member)
    assert found["noise"] == pytest.approx(wrong.mean())
    if wrong.any() and called.any():
        assert found["precision"] == pytest.approx(precision_score(wrong, called))
        assert found["recall"] == pytest.approx(recall_score(wrong, called))
        assert found["f1"] == pytest.approx(f1_score(wrong, called, zero_division=0))


def test_an_interval_of_pairs_counts_samples() -> None:
    member = np.array([[1, 0, 1, 0], [0, 1, 0, 0]], dtype=bool)
    labels = np.array([[1, 0, 1, 1], [0, 1, 0, 0]])
    found = true_labels(labels, member)
    assert found.share == 7 / 8
    assert found.interval == wilson(7 / 8, 2)  # eight decisions about two samples


def test_given_and_added_labels_are_measured_by_themselves() -> None:
    rng = np.random.default_rng(0)
    member, before = rng.random((400, 3)) < 0.2, (rng.random((400, 3)) < 0.3).astype(np.int64)
    scores = rng.random((400, 3))
    after = (scores > 0.5).astype(np.int64)
    found = score_quality(scores, before, after, member)
    added, removed = (after > 0) & (before == 0), (after == 0) & (before > 0)
    assert found["added_right"] == pytest.approx(member[added].mean())
    assert found["removed_right"] == pytest.approx(1 - member[removed].mean())
    slow = 0.0
    for name, mask in (("given_ece", before > 0), ("added_ece", added)):
        slow, p, t = 0.0, scores[mask], member[mask]
        for low in np.arange(15) / 15:
            inside = (p > low) & (p <= low + 1 / 15)
            if inside.any():
                slow += inside.mean() * abs(p[inside].mean() - t[inside].mean())
        assert found[name] == pytest.approx(slow, abs=1e-6)
    assert "given_ece" not in score_quality(scores, before[:, 0], after[:, 0], member)
