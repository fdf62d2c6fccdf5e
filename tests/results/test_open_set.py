"""The open-set curve equals a brute-force one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_recall_fscore_support, precision_score, recall_score

from capro.errors import DataError
from capro.results import open_set


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 6), st.booleans())
def test_curve_equals_brute_force(seed: int, n: int, c: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(c, 0.4), n)
    scores = np.round(scores, 2) if coarse else scores  # confidences on the thresholds themselves
    y = rng.integers(-1, c, n)
    found = open_set.curve(scores, y)
    labels = sorted(set(y.tolist()))
    for number in rng.choice(101, 8, replace=False):
        t = open_set.THRESHOLDS[number]
        taken = np.array([row.argmax() if row.max() >= t else -1 for row in scores])
        p, r, *_ = precision_recall_fscore_support(y, taken, labels=labels, average="macro", zero_division=0)
        assert found[number].precision == pytest.approx(p)
        assert found[number].recall == pytest.approx(r)
        assert found[number].f1 == pytest.approx(2 * p * r / (p + r) if p + r else 0)
    assert found.mean == pytest.approx(np.mean([point.f1 for point in found]))
    assert found.best.f1 == max(point.f1 for point in found)


def test_by_hand() -> None:
    scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.55, 0.45]])
    y = np.array([0, 1, open_set.OPEN])
    found = open_set.curve(scores, y)
    assert found.at(0.58).f1 == 1.0  # only the open one is below
    assert found.at(0.0).recall == pytest.approx(2 / 3)
    assert found.at(1.0).recall == pytest.approx(1 / 3)
    assert found.best.threshold == 0.56
    whole = found.as_dict(held_out=0.58)
    assert whole["held_out"]["f1"] == 1.0
    assert len(whole["curve"]) == 101


def test_threshold_from_held_out_samples_separates_known_from_unknown() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 200)
    logits = rng.normal(size=(200, 5))
    logits[np.arange(200), y] += 6
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    t = open_set.held_out_threshold(scores, y)
    assert 0.5 < t < 1
    assert (scores.max(axis=1) >= t).mean() > 0.8


def slow_threshold(scores: np.ndarray, y: np.ndarray) -> float:
    """The rule of docs/evaluation.md in loops; for several labels the known class is "some class"."""
    several, answers = y.ndim == 2, []  # (true, said if sure, confidence)
    for row, own in zip(scores.tolist(), y.tolist(), strict=True):
        taken_out = [c for c, there in enumerate(own) if there] if several else [own]
        rest = [0.0 if c in taken_out else p for c, p in enumerate(row)]
        if not several:
            rest = [p / sum(rest) for p in rest]
        answers.append((0 if several else own, 0 if several else row.index(max(row)), max(row)))
        answers.append((-1, 0 if several else rest.index(max(rest)), max(rest)))
    best, found = -1.0, 0.0
    for step in range(101):
        t = step / 100
        said = [(true, c if sure >= t else -1) for true, c, sure in answers]
        classes = sorted({true for true, _ in said})
        hits = [sum(a == b == c for a, b in said) for c in classes]
        p = np.mean([h / max(1, sum(b == c for _, b in said)) for h, c in zip(hits, classes, strict=True)])
        r = np.mean([h / sum(a == c for a, _ in said) for h, c in zip(hits, classes, strict=True)])
        f1 = 2 * p * r / (p + r) if p + r else 0.0
        if f1 > best + 1e-12:
            best, found = f1, t
    return found


@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(2, 5), st.booleans())
def test_held_out_threshold_equals_brute_force(seed: int, n: int, c: int, several: bool) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, c, n)
    scores = rng.dirichlet(np.full(c, 0.5), n) + 1e-9
    if several:
        scores, y = rng.random((n, c)), (rng.random((n, c)) < 0.4).astype(np.int64)
        y[np.arange(n), rng.integers(0, c, n)] = 1
    found = open_set.held_out(scores, y, origin="here")
    assert found["threshold"] == pytest.approx(slow_threshold(scores, y))
    assert found["known"]["samples"] == n
    kept = np.mean([max(row) >= found["threshold"] for row in scores])
    assert found["known"]["kept"] == pytest.approx(kept)


def test_nothing_to_choose_from_gives_no_threshold() -> None:
    one = open_set.held_out(np.ones((4, 1)), np.zeros(4, dtype=np.int64), origin="here")
    none = open_set.held_out(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), origin="here")
    assert one["threshold"] is none["threshold"] is None


def test_sure_scores_without_mass_elsewhere_do_not_divide_by_zero() -> None:
    assert 0 <= open_set.held_out_threshold(np.eye(3), np.arange(3)) <= 1


@given(st.integers(3, 30), st.floats(0.05, 0.95), st.integers(0, 5))
def test_split_is_a_partition(n: int, share: float, seed: int) -> None:
    names = [f"c{i}" for i in range(n)]
    known, novel = open_set.split_classes(names, novel_share=share, seed=seed)
    assert sorted(known + novel) == sorted(names)
    assert len(known) >= 2
    assert novel
    assert (known, novel) == open_set.split_classes(names, novel_share=share, seed=seed)


def test_class_list(tmp_path: Path) -> None:
    file = tmp_path / "novel.txt"
    file.write_text("# novel\nant\n\nbee\nant\n")
    assert open_set.read_class_list(file, ["ant", "bee", "cat"]) == ["ant", "bee"]
    file.write_text("0 n02206856\nant  # the insect\nn09999999 cat\n")
    ids = {"n02206856": "bee", "n02121620": "cat"}
    with pytest.raises(DataError, match=r"novel.txt:3: no class 'n09999999 cat'"):
        open_set.read_class_list(file, ["ant", "bee", "cat"], ids)
    file.write_text("0 n02206856\nant  # the insect\n")
    assert open_set.read_class_list(file, ["ant", "bee", "cat"], ids) == ["bee", "ant"]
    with pytest.raises(DataError, match=r"novel.txt:1: no class '0 n02206856'"):
        open_set.read_class_list(file, ["ant", "cat"], ids)
    file.write_text("ant\nbea\n")
    with pytest.raises(DataError, match=r"novel.txt:2: no class 'bea'") as error:
        open_set.read_class_list(file, ["ant", "bee"])
    assert "bee" in error.value.hint
    file.write_text("\n")
    with pytest.raises(DataError, match="names no class"):
        open_set.read_class_list(file, ["ant"])


def test_errors() -> None:
    with pytest.raises(DataError, match="no sample"):
        open_set.curve(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    with pytest.raises(DataError, match="0 held-out samples"):
        open_set.held_out_threshold(np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    with pytest.raises(DataError, match="2 classes"):
        open_set.split_classes(["a", "b"])


def test_answer_curve_equals_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    scores, y = rng.dirichlet(np.ones(4) / 2, 150), rng.integers(-1, 4, 150)
    found = open_set.answer_curve(scores, y)
    for step in (0, 33, 60, 90):
        kept = scores.max(axis=1) >= step / 100
        answer = np.where(kept, scores.argmax(axis=1), -1)
        p = precision_score(y, answer, average="macro", zero_division=0)
        r = recall_score(y, answer, average="macro", zero_division=0)
        assert found["f1"][step] == pytest.approx(2 * p * r / (p + r))
        assert found["answered"][step] == pytest.approx(kept.mean())
        assert found["open"][step] == pytest.approx((answer[y < 0] == -1).mean())
    assert found["right"][0] == pytest.approx((scores.argmax(axis=1) == y).mean())
    assert found["right"][100] is None  # no answer
    assert found["caught"][100] == 1.0


def test_label_curve_equals_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    scores, y = rng.random((80, 4)), rng.integers(0, 2, (80, 4))
    found = open_set.label_curve(scores, y)
    for name, theirs in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert found[name][40] == pytest.approx(theirs(y, scores >= 0.4, average="micro"))
    assert found["precision"][100] is None  # nothing is predicted
    assert found["f1"][100] == 0.0
    assert found["labels"][0] == 4.0
