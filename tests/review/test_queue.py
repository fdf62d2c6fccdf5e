"""The queue: most valuable first, classes take turns, a truly random part; and the table it is made from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.errors import RunError
from capro.pipeline.artefacts import CLEANED_LABELS
from capro.pipeline.run import Run
from capro.review.queue import (
    EVERY,
    chance_of_error,
    groups_of,
    leaders,
    load_table,
    make_queue,
    random_order,
)
from tests.fakes import rewrite

errors = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40)


def queue_of(error: list[float], *, classes: int = 3, groups: int | None = None, seed: int = 0):
    n = len(error)
    concern = np.arange(n) % classes
    group = np.arange(n) if groups is None else np.arange(n) % groups
    return make_queue(np.array(error), concern, group, np.ones(n), seed=seed)


@given(errors, st.integers(0, 5))
def test_every_sample_is_asked_once(error: list[float], seed: int) -> None:
    found = queue_of(error, seed=seed)
    assert sorted(found.order.tolist()) == [*range(len(error))]


@given(errors)
def test_the_random_part_does_not_depend_on_the_scores(error: list[float]) -> None:
    found = queue_of(error)
    assert found.drawn.tolist() == random_order(len(error), 0).tolist()
    drawn = found.order[found.random[found.order]]
    place = {row: n for n, row in enumerate(found.drawn.tolist())}
    assert [place[row] for row in drawn.tolist()] == sorted(place[row] for row in drawn.tolist())


def test_about_each_fifth_question_is_random() -> None:
    rng = np.random.default_rng(0)
    found = queue_of(rng.random(5000).tolist(), classes=50)
    random = found.random[found.order]
    assert abs(random[:500].mean() - 1 / EVERY) < 0.05
    assert not random[: EVERY - 1].any()


@given(errors)
def test_within_a_class_the_larger_gain_comes_first(error: list[float]) -> None:
    found = queue_of(error, classes=1)
    asked = found.order[~found.random[found.order]]
    assert (np.diff(found.gain[asked]) <= 1e-9).all()


def test_classes_take_turns() -> None:
    """A class with the highest gains does not take all of the beginning."""
    error = np.r_[np.linspace(0.9, 0.8, 200), np.linspace(0.85, 0.7, 200)]
    concern = np.repeat([0, 1], 200)
    found = make_queue(error, concern, np.arange(400), np.ones(400), seed=0)
    first = found.order[~found.random[found.order]][:60]
    assert 15 <= (concern[first] == 1).sum() <= 45


def test_a_group_is_one_question_with_the_gain_of_all() -> None:
    found = make_queue(
        np.array([0.4, 0.5, 0.45, 0.6]), np.zeros(4, np.int64), np.array([0, 0, 0, 1]), np.ones(4), seed=0
    )
    assert found.leader.tolist() == [1, 1, 1, 3]
    assert found.gain.round(2).tolist() == [0, 1.35, 0, 0.6]
    assert found.order[~found.random[found.order]][0] == 1


def test_a_picture_unlike_all_others_is_worth_less() -> None:
    found = make_queue(np.array([0.5, 0.5]), np.array([0, 1]), np.arange(2), np.array([0.0, np.nan]), seed=0)
    assert found.gain.tolist() == [0.25, 0.5]


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 4)), min_size=1, max_size=30))
def test_leaders_equal_a_slow_search(rows: list[tuple[float, int]]) -> None:
    error, group = (np.array(column) for column in zip(*rows, strict=True))
    expected = [
        max((other for other in range(len(rows)) if group[other] == group[row]), key=lambda o: (error[o], -o))
        for row in range(len(rows))
    ]
    assert leaders(error, group).tolist() == expected


def test_groups_are_split_where_labels_differ() -> None:
    found = groups_of(np.array([3, 3, 3, -1, -1]), np.array([0, 0, 1, 0, 0]))
    assert found[0] == found[1]
    assert len(set(found.tolist())) == 4


@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 10**6))
def test_the_chance_of_error_is_a_probability(n: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.ones(classes + 1), n)
    labels = rng.integers(-1, classes, n)
    found = chance_of_error(q[:, :classes], labels, q[:, classes])
    assert ((found >= 0) & (found <= 1)).all()
    assert np.allclose(1 - found, q[np.arange(n), labels])


def test_errors_of_multi_label_rows_are_numbers(multi_run: Run) -> None:
    assert np.isfinite(load_table(multi_run).error).all()


def test_verdicts_of_another_scan_are_refused(run: Run) -> None:
    rewrite(run, CLEANED_LABELS, np.zeros(3, np.int64))
    with pytest.raises(RunError, match="belong to another scan"):
        load_table(run)
