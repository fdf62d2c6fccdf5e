from __future__ import annotations

import numpy as np
import pytest
from capro.report.figures import KINDS
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, f1_score, precision_score, recall_score

from capro.report import figures

C = 4
label_lists = st.lists(
    st.tuples(st.integers(-1, C - 1), st.integers(-1, C - 1), st.booleans()), min_size=1, max_size=30
)


def columns(rows: list[tuple[int, int, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    given_, after, anchored = (np.array(column) for column in zip(*rows, strict=True))
    return given_.astype(np.int64), after.astype(np.int64), anchored.astype(bool)


@given(label_lists)
def test_pairs_and_flow_count_every_label_once(rows: list[tuple[int, int, bool]]) -> None:
    y, after, anchored = columns(rows)
    counts = figures.pairs(y, after, anchored).counts(C)
    matrix = figures.flow(y, after, C)
    slow = np.zeros((C + 1, C + 1), dtype=int)
    for a, b, _ in rows:
        slow[a, b] += 1  # -1 is the last row and column
    assert (matrix == slow).all()
    kinds = {name: counts[:, number] for number, name in enumerate(KINDS)}
    assert (kinds["anchor"] + kinds["keep"] == np.diag(slow)[:C]).all()
    assert (kinds["drop"] == slow[:C, C]).all()
    assert (kinds["away"] == slow[:C, :C].sum(axis=1) - np.diag(slow)[:C]).all()
    assert (kinds["arrived"] == slow[:, :C].sum(axis=0) - np.diag(slow)[:C]).all()


@given(label_lists, st.integers(0, 2**32 - 1))
def test_several_labels_of_one_class_each_are_single_labels(
    rows: list[tuple[int, int, bool]], seed: int
) -> None:
    del seed
    y, after, anchored = columns([(max(a, 0), b, c) for a, b, c in rows])
    member = np.eye(C, dtype=np.int64)
    many = np.where(after[:, None] < 0, -1, member[after])
    one = figures.pairs(y, after, anchored)
    several = figures.pairs(member[y], many, np.repeat(anchored[:, None], C, axis=1))
    assert (one.counts(C) == several.counts(C)).all()
    assert (
        figures.given_by_corrected(y, after, C)[:, :C]
        == figures.given_by_corrected(member[y], many, C)[:, :C]
    ).all()


def test_bundle_keeps_the_sum_and_the_busiest() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 9, (8, 8))
    matrix[3, 5] = 500
    small, kept = figures.bundle(matrix, 3)
    assert small.sum() == matrix.sum()
    assert {3, 5} <= set(kept)
    assert kept[-1] == -1
    assert small[kept.index(3), kept.index(5)] == 500


def test_confusion_and_reliability_equal_slow_ones() -> None:
    rng = np.random.default_rng(1)
    scores, y = rng.dirichlet(np.ones(C), 200), rng.integers(0, C, 200)
    answer = scores.argmax(axis=1)
    assert (figures.confusion(scores, y) == confusion_matrix(y, answer)).all()
    found = figures.reliability(scores, y, bins=10)
    ece = 0.0
    for b in range(10):
        inside = [i for i in range(200) if b / 10 <= scores[i].max() < (b + 1) / 10]
        assert found["count"][b] == len(inside)
        if inside:
            gap = np.mean([scores[i].max() for i in inside]) - np.mean(answer[inside] == y[inside])
            ece += abs(gap) * len(inside) / 200
    assert found["ece"] == pytest.approx(ece)


def test_open_set_curve_equals_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    scores, y = rng.dirichlet(np.ones(C) / 2, 150), rng.integers(-1, C, 150)
    found = figures.open_set(scores, y)
    for step in (0, 33, 60, 90):
        kept = scores.max(axis=1) >= step / 100
        said = np.where(kept, scores.argmax(axis=1), -1)
        p = precision_score(y, said, average="macro", zero_division=0)
        r = recall_score(y, said, average="macro", zero_division=0)
        assert found["f1"][step] == pytest.approx(2 * p * r / (p + r))
        assert found["answered"][step] == pytest.approx(kept.mean())
        assert found["open"][step] == pytest.approx((said[y < 0] == -1).mean())
    assert found["right"][0] == pytest.approx((scores.argmax(axis=1) == y).mean())


def test_label_threshold_equals_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    scores, y = rng.random((80, C)), rng.integers(0, 2, (80, C))
    found = figures.label_threshold(scores, y)
    expected = f1_score(y, scores >= 0.4, average="micro")
    assert found["f1"][40] == pytest.approx(expected)
    assert found["precision"][100] is None  # nothing is said


def test_classes_made_worse_come_first() -> None:
    y = np.array([0, 0, 1, 1, 2])
    vanilla, capro = np.eye(3)[[0, 0, 0, 0, 2]], np.eye(3)[[0, 1, 1, 1, 2]]
    rows = figures.class_changes(vanilla, capro, y)
    assert [(row["label"], row["change"]) for row in rows] == [(0, -0.5), (2, 0.0), (1, 1.0)]
    low, high = figures.paired_interval(vanilla, capro, y)
    assert low < 0.2 < high


@pytest.mark.parametrize("size", [1, 3, 12])
def test_map_of_few_or_equal_images_stays_within_the_square(size: int) -> None:
    rng = np.random.default_rng(4)
    for features in (rng.normal(size=(size, 5)), np.ones((size, 5))):
        points = figures.embedding_map(features, seed=2**62)
        assert points.shape == (size, 2)
        assert np.isfinite(points).all()
        assert points.min() >= -1e-6
        assert points.max() <= 1 + 1e-6
