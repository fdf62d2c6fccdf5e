"""Every label is counted once, in each of the tables that cleaning is shown by."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import sparse

from capro.core.label_rule import dropped_at
from capro.results.label_changes import (
    DROP_VALUES,
    KINDS,
    bundle,
    drop_levels,
    flow,
    given_by_corrected,
    label_changes,
)

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
    counts = label_changes(y, after, anchored).counts(C)
    matrix = flow(y, after, C).toarray()
    slow = np.zeros((C + 1, C + 1), dtype=int)
    for a, b, _ in rows:
        slow[a, b] += 1  # -1 is the last row and column
    assert (matrix == slow).all()
    kinds = {name: counts[:, number] for number, name in enumerate(KINDS)}
    assert (kinds["anchor"] + kinds["keep"] == np.diag(slow)[:C]).all()
    assert (kinds["drop"] == slow[:C, C]).all()
    assert (kinds["away"] == slow[:C, :C].sum(axis=1) - np.diag(slow)[:C]).all()
    assert (kinds["arrived"] == slow[:, :C].sum(axis=0) - np.diag(slow)[:C]).all()


@given(label_lists)
def test_several_labels_of_one_class_each_are_single_labels(rows: list[tuple[int, int, bool]]) -> None:
    y, after, anchored = columns([(max(a, 0), b, c) for a, b, c in rows])
    member = np.eye(C, dtype=np.int64)
    many = np.where(after[:, None] < 0, -1, member[after])
    one = label_changes(y, after, anchored)
    several = label_changes(member[y], many, np.repeat(anchored[:, None], C, axis=1))
    assert (one.counts(C) == several.counts(C)).all()
    single, multi = given_by_corrected(y, after, C), given_by_corrected(member[y], many, C)
    assert (single[:, :C].toarray() == multi[:, :C].toarray()).all()


def test_bundle_keeps_the_sum_and_the_busiest() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 9, (8, 8))
    matrix[3, 5] = 500
    small, kept = bundle(sparse.csr_array(matrix), 3)
    assert small.sum() == matrix.sum()
    assert {3, 5} <= set(kept)
    assert kept[-1] == -1
    assert small[kept.index(3), kept.index(5)] == 500


def test_counts_of_ten_thousand_classes_are_small() -> None:
    y = np.arange(20_000) % 10_000
    matrix = flow(y, np.roll(y, 1), 10_000)
    assert matrix.nnz == 10_000
    small, kept = bundle(matrix, 5)
    assert (small.sum(), len(kept)) == (20_000, 6)


@given(
    st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)), max_size=30),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
def test_every_value_drops_what_the_rule_drops(pairs: list[tuple[float, float]], now: float) -> None:
    shares = [none / (none + best) for none, best in pairs]
    assume(all(abs(share - value) > 1e-9 for share in shares for value in (*DROP_VALUES, now)))
    levels = drop_levels(np.array(shares), now)
    assert [level.value for level in levels] == sorted({*DROP_VALUES, now}, reverse=True)
    before: set[int] = set()
    for level in levels:
        slow = {row for row, (none, best) in enumerate(pairs) if dropped_at(none, best, level.value)}
        assert level.dropped == len(slow)
        assert sorted(level.rows.tolist()) == sorted(slow - before)
        assert sorted(level.rows.tolist(), key=lambda row: -shares[row]) == level.rows.tolist()
        before = slow


def test_what_a_person_dropped_is_dropped_at_every_value() -> None:
    levels = drop_levels(np.array([np.inf, -np.inf, 0.4]), 1.0)
    assert [(level.value, level.dropped) for level in levels] == [
        (1, 1),
        (0.9, 1),
        (0.7, 1),
        (0.5, 1),
        (0.3, 2),
    ]
    assert levels[0].rows.tolist() == [0]
