"""The label rules, the paper's and the posterior's, against slow references."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from capro.core.label_rule import (
    NULL,
    LabelDecision,
    PairDecision,
    adjust,
    adjust_multi_label,
    decide,
    decide_multi_label,
    diagnose,
    fused_score,
)
from tests.core.cases import FEW, SEEDS, distributions, generator

# Sixteenths: sums and thresholds are exact, so that equalities really are equalities.
sixteenths = st.integers(0, 16).map(lambda n: n / 16)


def ruled(row: list[float], y: int, gamma: float, anchor: bool = False, protect: bool = True):
    labels, decisions = adjust(
        torch.tensor([row]), torch.tensor([y]), torch.tensor([anchor]), gamma=gamma, protect_anchors=protect
    )
    return int(labels[0]), LabelDecision(int(decisions[0])).name


def slow_rule(row: list[float], y: int, gamma: float, anchor: bool, protect: bool):
    if anchor and protect:
        return y, "ANCHOR"
    if max(row) > gamma:
        winners = [c for c, score in enumerate(row) if score == max(row)]
        winner = y if y in winners else winners[0]
        return winner, "KEEP" if winner == y else "RELABEL"
    if row[y] > 1 / len(row):
        return y, "KEEP"
    return NULL, "DROP"


@pytest.mark.parametrize(
    ("row", "y", "gamma", "wanted"),
    [
        ([0.75, 0.25, 0, 0], 1, 0.5, (0, "RELABEL")),
        ([0.75, 0.25, 0, 0], 0, 0.5, (0, "KEEP")),  # the second case confirms the label
        ([0.5, 0.5, 0, 0], 1, 0.5, (1, "KEEP")),  # max equals gamma: third case
        ([0.75, 0.25, 0, 0], 1, 0.75, (NULL, "DROP")),  # equal to gamma and equal to 1/C
        ([0.625, 0.375, 0, 0], 1, 0.75, (1, "KEEP")),
        ([0.25, 0.25, 0.25, 0.25], 2, 0.2, (2, "KEEP")),  # a draw is no reason to change
        ([0.375, 0.375, 0.25, 0], 2, 0.25, (0, "RELABEL")),  # a draw without y: lowest index
        ([0.25, 0.25, 0.25, 0.25], 2, 0.25, (NULL, "DROP")),
    ],
)
def test_cases_of_the_rule(row, y, gamma, wanted):
    assert ruled(row, y, gamma) == wanted


def test_anchors_are_protected_except_under_mopro():
    row = [0.875, 0.125, 0, 0]
    assert ruled(row, 1, 0.5, anchor=True) == (1, "ANCHOR")
    assert ruled(row, 1, 0.5, anchor=True, protect=False) == (0, "RELABEL")
    assert ruled([0.5, 0.5, 0, 0], 2, 0.5, anchor=True, protect=False) == (NULL, "DROP")


def test_a_sample_without_a_label_comes_in_by_confidence_only():
    assert ruled([0.75, 0.25], NULL, 0.6) == (0, "RELABEL")
    assert ruled([0.75, 0.25], NULL, 0.8) == (NULL, "DROP")


@given(
    st.lists(
        st.tuples(st.lists(sixteenths, min_size=4, max_size=4), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    sixteenths,
    st.booleans(),
)
def test_rule_equals_the_slow_one(batch, gamma, protect):
    o = torch.tensor([row for row, _, _ in batch])
    y = torch.tensor([label for _, label, _ in batch])
    anchor = torch.tensor([flag for _, _, flag in batch])
    labels, decisions = adjust(o, y, anchor, gamma=gamma, protect_anchors=protect)
    found = [(int(a), LabelDecision(int(d)).name) for a, d in zip(labels, decisions, strict=True)]
    assert found == [slow_rule(row, c, gamma, flag, protect) for row, c, flag in batch]
    assert labels.dtype == decisions.dtype == torch.int64


def test_fused_score_by_hand():
    o = fused_score(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]), alpha=0.25)
    assert o.tolist() == [[0.875, 0.125]]


@given(st.floats(0, 1), st.integers(0, 1000))
def test_fused_score_stays_a_distribution(alpha, seed):
    gen = torch.Generator().manual_seed(seed)
    p, r = torch.randn(2, 3, 5, generator=gen).softmax(-1)
    torch.testing.assert_close(fused_score(p, r, alpha=alpha).sum(1), torch.ones(3))


# ---------------------------------------------------------------------------- multi-label


def slow_rule_multi_label(o: Tensor, y: Tensor, anchored: Tensor, gamma: float, protect: bool):
    labels, decisions = y.clone(), torch.zeros_like(y)
    for i in range(y.shape[0]):
        for c in range(y.shape[1]):
            if anchored[i, c] and protect:
                continue
            if o[i, c] > gamma:
                labels[i, c] = 1
            elif 1 - o[i, c] > gamma:
                labels[i, c] = 0
            if labels[i, c] != y[i, c]:
                name = "ADD" if labels[i, c] else "REMOVE"
                decisions[i, c] = PairDecision[name]
        if y[i].any() and not labels[i].any():
            labels[i] = NULL
    return labels, decisions


@given(st.integers(0, 6), st.integers(0, 1000), sixteenths, st.booleans())
def test_multi_label_rule_equals_the_slow_one(b, seed, gamma, protect):
    gen = torch.Generator().manual_seed(seed)
    o = torch.randint(0, 17, (b, 3), generator=gen) / 16
    y = torch.randint(0, 2, (b, 3), generator=gen)
    anchored = (y == 1) & (torch.rand(b, 3, generator=gen) < 0.3)
    found = adjust_multi_label(o, y, anchored, gamma=gamma, protect_anchors=protect)
    wanted = slow_rule_multi_label(o, y, anchored, gamma, protect)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def rule_of_one(row: list[float], y: list[int], anchored: list[int], protect: bool = True):
    labels, decisions = adjust_multi_label(
        torch.tensor([row]),
        torch.tensor([y]),
        torch.tensor([anchored]).bool(),
        gamma=0.75,
        protect_anchors=protect,
    )
    return labels[0].tolist(), [PairDecision(int(d)).name for d in decisions[0]]


def test_multi_label_rule_is_strict_on_both_sides():
    assert rule_of_one([0.75, 0.25, 0.5], [0, 1, 1], [0, 0, 0]) == ([0, 1, 1], ["KEEP"] * 3)
    assert rule_of_one([0.8, 0.2, 0.5], [0, 1, 1], [0, 0, 0]) == ([1, 0, 1], ["ADD", "REMOVE", "KEEP"])


def test_a_sample_that_lost_every_label_is_out_but_one_that_had_none_is_not():
    assert rule_of_one([0.1, 0.1], [1, 0], [0, 0]) == ([NULL, NULL], ["REMOVE", "KEEP"])
    assert rule_of_one([0.1, 0.1], [0, 0], [0, 0]) == ([0, 0], ["KEEP", "KEEP"])
    assert rule_of_one([0.1, 0.9], [1, 0], [0, 0]) == ([0, 1], ["REMOVE", "ADD"])


def test_only_the_anchored_labels_of_an_anchor_are_protected():
    assert rule_of_one([0.1, 0.1], [1, 1], [1, 0]) == ([1, 0], ["KEEP", "REMOVE"])
    assert rule_of_one([0.1, 0.1], [1, 1], [1, 0], protect=False) == ([NULL, NULL], ["REMOVE"] * 2)


# --- the posterior decides


@given(SEEDS)
@FEW
def test_decisions_follow_the_posterior(seed):
    q, y = distributions(20, 4, seed), torch.randint(0, 3, (20,), generator=generator(seed))
    anchors = torch.rand(20, generator=generator(seed + 1)) < 0.3
    found = decide(q, y, anchors, sure=0.5)
    for i in range(20):
        best, p, none = int(q[i, :3].argmax()), float(q[i, :3].max()), float(q[i, 3])
        label = (
            -1 if none > p else best if p > 0.5 else int(y[i])
        )  # a relabel below one half is asked, not done
        kept = LabelDecision.ANCHOR if anchors[i] else LabelDecision.KEEP
        wanted = LabelDecision.DROP if label < 0 else kept if label == y[i] else LabelDecision.RELABEL
        assert (int(found.labels[i]), int(found.decisions[i])) == (label, wanted)
        assert bool(found.ask[i]) == (max(p, none) <= 0.5)
    unlabelled = decide(q, torch.full((20,), -1), anchors, sure=0.5).labels
    assert torch.equal(unlabelled, torch.where(q[:, 3] > q[:, :3].max(1)[0], -1, q[:, :3].argmax(1)))


@given(SEEDS)
@FEW
def test_dropping_is_as_strict_as_asked(seed):
    q, y = distributions(50, 4, seed), torch.randint(0, 3, (50,), generator=generator(seed))
    nobody = torch.zeros(50, dtype=torch.bool)
    dropped = [
        decide(q, y, nobody, drop_above=value).labels == -1 for value in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
    ]
    for strict, lax in pairwise(dropped):
        assert not (lax & ~strict).any()
    assert dropped[0].all()
    assert not dropped[-1].any()
    share = q[:, 3] / (q[:, 3] + q[:, :3].max(1)[0])
    assert torch.equal(dropped[3], share > 0.7)


@given(SEEDS)
@FEW
def test_pairs_are_decided_one_by_one(seed):
    q = torch.rand(12, 3, generator=generator(seed))
    y = (torch.rand(12, 3, generator=generator(seed + 1)) < 0.4).long()
    found = decide_multi_label(q, y)
    for i in range(12):
        now = [int(q[i, c] > 0.5) for c in range(3)]
        gone = bool(y[i].any()) and not any(now)
        assert found.labels[i].tolist() == ([-1] * 3 if gone else now)
        for c in range(3):
            change = now[c] - int(y[i, c])
            wanted = {1: PairDecision.ADD, 0: PairDecision.KEEP, -1: PairDecision.REMOVE}[change]
            assert int(found.decisions[i, c]) == wanted
            assert bool(found.ask[i, c]) == (abs(float(q[i, c]) - 0.5) < 0.1)


def test_diagnosis_names_what_is_wrong():
    y = torch.tensor([0] * 10 + [1] * 10)
    classes, anchors = torch.eye(2), torch.arange(20) < 5
    sure = one_hot(y, 3).float()
    assert diagnose(sure, y, [torch.eye(2)[y]], classes, anchors=anchors) == []
    away = sure.clone()
    away[:4] = torch.tensor([0.0, 0.0, 1.0])
    (found,) = diagnose(away, y, [torch.eye(2)[y]], classes, anchors=anchors)
    assert (found.kind, found.classes, found.share) == ("anchors", (0,), pytest.approx(0.8))
    assert found.rows == (0, 1, 2, 3)
    mixed = torch.tensor([0.5, 0.5, 0.0]).repeat(20, 1)
    assert [f.kind for f in diagnose(mixed, y, [torch.eye(2)[y]], classes)] == ["one class"]
    swapped = torch.eye(2)[torch.where(y == 0, 1, y)]
    assert [(f.kind, f.classes) for f in diagnose(sure, y, [swapped], classes)] == [("sense", (0,))]


def test_classes_are_compared_in_parts_as_all_at_once(monkeypatch):
    y, classes = torch.arange(42) % 7, torch.eye(7)
    pair = torch.tensor([3, 5, 2, 0, 4, 1, 6])[y]  # 0 with 3, 1 with 5
    q = (one_hot(y, 8) + one_hot(pair, 8)) / 2 + torch.rand(42, 8, generator=generator(0)) / 100
    whole = diagnose(q, y, [classes[y]], classes)
    assert [f.classes for f in whole if f.kind == "one class"] == [(0, 3), (1, 5)]
    monkeypatch.setattr("capro.core.label_rule.CLASSES_AT_ONCE", 2)
    assert diagnose(q, y, [classes[y]], classes) == whole
