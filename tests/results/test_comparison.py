"""Vanilla against CAPro: by hand, and the interval against a slow one."""

from __future__ import annotations

import numpy as np
import pytest

from capro.results.comparison import Evaluated, compare, jsonable, paired_interval

CLASSES = ["a", "b", "c"]
Y = np.array([0, 0, 1, 1, 2])
SCORES = {"vanilla": np.eye(3)[[0, 0, 0, 0, 2]], "capro": np.eye(3)[[0, 1, 1, 1, 2]]}


def test_classes_made_worse_come_first() -> None:
    found = compare(SCORES, Y, CLASSES, np.array([False, True, False]))
    assert [(row["class"], row["difference"]) for row in found["classes"]] == [
        ("a", -0.5),
        ("c", 0),
        ("b", 1),
    ]
    assert [row["samples"] for row in found["classes"]] == [2, 1, 2]
    assert (found["worse"], found["equal"], found["better"]) == (1, 1, 1)
    assert found["difference"]["top1"] == pytest.approx(0.2)
    assert found["confusion"]["vanilla"] == [{"true": "b", "taken_for": "a", "count": 2, "share": 1.0}]
    assert found["ambiguous"]["samples"] == 2
    assert found["ambiguous"]["capro"]["top1"] == 1.0
    assert found["unambiguous"]["capro"]["top1"] == pytest.approx(2 / 3)


def test_several_labels_are_compared_by_average_precision() -> None:
    y = np.eye(3, dtype=np.int64)[[0, 1, 1]]  # no sample of c
    scores = {"vanilla": np.array([[0.9, 0.2, 0], [0.5, 0.1, 0], [0.1, 0.8, 0]]), "capro": y.astype(float)}
    found = compare(scores, y, CLASSES, np.array([False, False, True]))
    assert [row["class"] for row in found["classes"]] == ["a", "b"]
    assert found["classes"][1]["vanilla"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["class_figure"] == "AP"
    assert np.isnan(found["ambiguous"]["capro"]["mAP"])
    assert jsonable(found)["ambiguous"]["capro"]["mAP"] is None


def test_interval_equals_a_slow_one_and_needs_two_samples() -> None:
    each = [
        float(b == y) - float(a == y) for a, b, y in zip([0, 0, 0, 0, 2], [0, 1, 1, 1, 2], Y, strict=True)
    ]
    mean = sum(each) / 5
    error = (sum((x - mean) ** 2 for x in each) / 4 / 5) ** 0.5
    found = paired_interval(SCORES["vanilla"], SCORES["capro"], Y)
    assert found == pytest.approx((mean - 1.96 * error, mean + 1.96 * error))
    one = paired_interval(SCORES["vanilla"][:1], SCORES["capro"][:1], Y[:1])
    assert np.isnan(one).all()


def test_open_samples_are_left_out() -> None:
    y = np.array([0, -1, 1])
    some = Evaluated("test", y, ["a", "x", "b"], {"vanilla": np.eye(3), "capro": np.eye(3)})
    scores, labels = some.known()
    assert labels.tolist() == [0, 1]
    assert scores["capro"].tolist() == np.eye(3)[[0, 2]].tolist()
    assert some.is_open.tolist() == [False, True, False]
