"""Metrics equal scikit-learn's on random data, ties included."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import binomtest
from sklearn import metrics as theirs
from sklearn.calibration import calibration_curve

from capro.errors import DataError, RunError
from capro.results import comparison, open_set
from capro.results import metrics as ours


def draw(seed: int, n: int, c: int, *, coarse: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scores = rng.random((n, c))
    return np.round(scores, 1) if coarse else scores  # coarse: many ties


cases = st.tuples(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 7), st.booleans())


@given(cases)
def test_single_label_equals_scikit_learn(case) -> None:
    seed, n, c, coarse = case
    scores = draw(seed, n, c, coarse=coarse)
    y = np.random.default_rng(seed + 1).integers(0, c, n)
    taken = scores.argmax(axis=1)
    assert ours.top_k_accuracy(scores, y, 1) == pytest.approx(theirs.accuracy_score(y, taken))
    matrix = ours.confusion(scores, y).toarray()
    np.testing.assert_array_equal(matrix, theirs.confusion_matrix(y, taken, labels=np.arange(c)))
    recall = theirs.recall_score(y, taken, labels=np.arange(c), average=None, zero_division=np.nan)
    np.testing.assert_allclose(ours.class_accuracy(scores, y), recall)
    for k in (2, 5):
        slow = [y[i] in sorted(range(c), key=lambda j: (-scores[i, j], j))[:k] for i in range(n)]
        assert ours.top_k_accuracy(scores, y, k) == pytest.approx(np.mean(slow))
    if not coarse and c > 2:  # their ties go to the higher class
        reference = theirs.top_k_accuracy_score(y, scores, k=2, labels=np.arange(c))
        assert ours.top_k_accuracy(scores, y, 2) == pytest.approx(reference)


@given(cases)
def test_decisions_equal_scikit_learn(case) -> None:
    seed, n, c, coarse = case
    scores = draw(seed, n, c, coarse=coarse)
    y = (np.random.default_rng(seed + 1).random((n, c)) < 0.3).astype(np.int64)
    for predicted, found in (
        (ours.top_decisions(scores), ours.multi_label(scores, y)),
        (scores > 0.5, {k[:-4]: v for k, v in ours.at_threshold(scores, y).items()}),
    ):
        for average, p, r in (("macro", "C-P", "C-R"), ("micro", "O-P", "O-R")):
            precision, recall, *_ = theirs.precision_recall_fscore_support(
                y, predicted, average=average, zero_division=0
            )
            assert found[p] == pytest.approx(precision)
            assert found[r] == pytest.approx(recall)
        micro = theirs.f1_score(y, predicted, average="micro", zero_division=0)
        assert found["O-F1"] == pytest.approx(micro)
        assert found["C-F1"] == pytest.approx(ours.harmonic(found["C-P"], found["C-R"]))


@given(cases)
def test_average_precisions_equal_scikit_learn(case) -> None:
    seed, n, c, coarse = case
    scores = draw(seed, n, c, coarse=coarse)
    y = (np.random.default_rng(seed + 1).random((n, c)) < 0.3).astype(np.int64)
    y[0, 0] = 1
    found = ours.average_precision(scores, y)
    for column in range(c):
        if y[:, column].any():
            reference = theirs.average_precision_score(y[:, column], scores[:, column])
            assert found[column] == pytest.approx(reference)
        else:
            assert np.isnan(found[column])
    assert ours.multi_label(scores, y)["mAP"] == pytest.approx(np.nanmean(found))
    released = ours.released_variants(scores, y)
    micro = theirs.average_precision_score(y, scores, average="micro")
    assert released["mAP-micro"] == pytest.approx(micro)
    predicted = ours.top_decisions(scores)
    p, r, f, _ = theirs.precision_recall_fscore_support(y, predicted, average="samples", zero_division=0)
    assert (released["P-image"], released["R-image"], released["F1-image"]) == pytest.approx((p, r, f))
    whole = y.any(axis=1)
    reference = np.mean([theirs.average_precision_score(y[i], scores[i]) for i in np.flatnonzero(whole)])
    assert released["mAP-image"] == pytest.approx(reference)


def test_the_top_three_by_hand() -> None:
    scores = np.array([[0.9, 0.8, 0.7, 0.1], [0.5, 0.5, 0.5, 0.5]])
    np.testing.assert_array_equal(
        ours.top_decisions(scores), [[True, True, True, False]] * 2
    )  # ties: the lower class
    y = np.array([[1, 0, 0, 1], [0, 1, 0, 0]])
    found = ours.multi_label(scores, y)
    assert found["O-P"] == pytest.approx(2 / 6)
    assert found["O-R"] == pytest.approx(2 / 3)
    assert found["C-P"] == pytest.approx((0.5 + 0.5 + 0 + 0) / 4)
    assert found["C-R"] == pytest.approx((1 + 1 + 0 + 0) / 4)


def slow_ece(sure: np.ndarray, right: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [i for i, s in enumerate(sure) if (low < s <= high) or (b == 0 and s == 0)]
        if inside:
            gap = abs(np.mean(right[inside]) - np.mean(sure[inside]))
            total += gap * len(inside) / len(sure)
    return total


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(2, 5))
def test_ece_equals_a_slow_one(seed: int, n: int, c: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.ones(c), n)
    y = rng.integers(0, c, n)
    found = ours.reliability(scores, y, bins=7)
    right = scores.argmax(axis=1) == y
    assert found.ece == pytest.approx(slow_ece(scores.max(axis=1), right, 7))
    assert found.sizes.sum() == n
    members = (rng.random((n, c)) < 0.5).astype(np.int64)
    sure = np.maximum(scores, 1 - scores).ravel()
    right = ((scores > 0.5) == members.astype(bool)).ravel()
    assert ours.reliability(scores, members, bins=7).ece == pytest.approx(slow_ece(sure, right, 7))


def test_a_perfectly_calibrated_model_has_no_error() -> None:
    scores = np.tile([0.75, 0.25], (4, 1))
    assert ours.reliability(scores, np.array([0, 0, 0, 1])).ece == pytest.approx(0)
    bins = ours.reliability(scores, np.array([0, 0, 0, 1])).as_dict()["bins"]
    assert sum(row["count"] for row in bins) == 4
    assert [row["accuracy"] for row in bins if row["count"]] == [0.75]


def test_confusion_pairs_are_ordered() -> None:
    matrix = sparse.csr_array([[5, 1, 3], [0, 9, 1], [3, 0, 0]])
    found = ours.confusion_pairs(matrix, top=3)
    assert [(p.true, p.taken, p.times) for p in found] == [(0, 2, 3), (2, 0, 3), (0, 1, 1)]
    assert found[1].share == 1.0


def test_summary_names_the_figures_of_each_task() -> None:
    scores = draw(0, 9, 4, coarse=False)
    one = ours.summary(scores, np.arange(9) % 4)
    assert set(one) == {"top1", "top5", "class-top1", "ECE"}
    several = ours.summary(scores, (scores > 0.6).astype(np.int64))
    assert {"C-F1", "O-F1", "mAP", "C-F1@0.5", "mAP-micro", "F1-image", "ECE"} <= set(several)


def test_no_positive_and_no_sample_are_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        empty = ours.multi_label(np.zeros((2, 3)), np.zeros((2, 3), dtype=np.int64))
        assert np.isnan(empty["mAP"])
        assert empty["C-F1"] == 0
        assert np.isnan(ours.top_k_accuracy(np.zeros((0, 3)), np.zeros(0, dtype=np.int64)))


@pytest.mark.parametrize("figure", [
    ours.headline, ours.summary, ours.top_k_accuracy, ours.class_accuracy, ours.confusion, ours.reliability,
    ours.by_class, open_set.curve, open_set.answer_curve, lambda s, y: comparison.paired_interval(s, s, y),
])  # fmt: skip
def test_nan_is_an_error_and_not_class_0(figure: Callable[..., object]) -> None:
    scores, y = draw(0, 9, 4, coarse=False), np.arange(9) % 4
    figure(scores, y)
    scores[6, 2] = np.nan
    with pytest.raises(RunError, match=r"sample number 6 has nan as a score"):
        figure(scores, y)


@pytest.mark.parametrize("figure", [
    ours.headline, ours.summary, ours.reliability, ours.at_threshold, ours.released_variants,
    ours.average_precision, ours.confusion_multi, open_set.label_curve,
])  # fmt: skip
def test_nan_is_an_error_with_several_labels(figure: Callable[..., object]) -> None:
    scores = draw(0, 9, 4, coarse=False)
    y = (scores > 0.5).astype(np.int64)
    figure(scores, y)
    scores[6, 2] = np.nan
    with pytest.raises(RunError, match=r"has nan as a score"):
        figure(scores, y)


def test_bins_must_be_positive() -> None:
    with pytest.raises(DataError, match="0 bins"):
        ours.reliability(np.zeros((1, 2)), np.array([0]), bins=0)


@given(st.integers(0, 10_000))
def test_reliability_equals_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, y = rng.dirichlet(np.full(4, 0.5), 60), rng.integers(0, 4, 60)
    found = ours.reliability(scores, y, bins=10)
    right = scores.argmax(axis=1) == y
    accuracy, confidence = calibration_curve(right, scores.max(axis=1), n_bins=10)
    np.testing.assert_allclose(found.accuracy[found.sizes > 0], accuracy)
    np.testing.assert_allclose(found.confidence[found.sizes > 0], confidence)


@given(st.integers(1, 300), st.floats(0, 1))
def test_the_interval_is_wilsons(samples: int, share: float) -> None:
    hits = round(share * samples)
    slow = binomtest(hits, samples).proportion_ci(0.95, method="wilson")
    assert ours.wilson(hits / samples, samples) == pytest.approx((slow.low, slow.high), abs=1e-6)


def test_nothing_has_no_interval() -> None:
    assert np.isnan(ours.wilson(float("nan"), 0)).all()


@given(cases)
def test_confusion_of_several_labels_equals_its_definition(case) -> None:
    seed, n, c, coarse = case
    scores = draw(seed, n, c, coarse=coarse)
    y = np.random.default_rng(seed + 1).integers(0, 2, (n, c))
    named = ours.top_decisions(scores, 3)
    slow = np.zeros((c, c), dtype=np.int64)
    for row in range(n):
        for i in range(c):
            slow[i, i] += bool(y[row, i] and named[row, i])
            for j in range(c):
                slow[i, j] += bool(y[row, i] and not named[row, i] and named[row, j] and not y[row, j])
    np.testing.assert_array_equal(ours.confusion_multi(scores, y).toarray(), slow)
