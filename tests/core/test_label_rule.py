from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from capro.core.label_rule import (
    NULL,
    LabelDecision,
    PairDecision,
    adjust,
    adjust_binary,
    fused_score,
    with_text,
)

# Sixteenths: sums and thresholds are exact, so that equalities really are equalities.
sixteenths = st.integers(0, 16).map(lambda n: n / 16)


def decide(row: list[float], y: int, gamma: float, anchor: bool = False, protect: bool = True):
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
    assert decide(row, y, gamma) == wanted


def test_anchors_are_protected_except_under_mopro():
    row = [0.875, 0.125, 0, 0]
    assert decide(row, 1, 0.5, anchor=True) == (1, "ANCHOR")
    assert decide(row, 1, 0.5, anchor=True, protect=False) == (0, "RELABEL")
    assert decide([0.5, 0.5, 0, 0], 2, 0.5, anchor=True, protect=False) == (NULL, "DROP")


def test_a_sample_without_a_label_comes_in_by_confidence_only():
    assert decide([0.75, 0.25], NULL, 0.6) == (0, "RELABEL")
    assert decide([0.75, 0.25], NULL, 0.8) == (NULL, "DROP")


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


def test_a_text_multiplies_the_fused_score():
    o, t = torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([[0.6, 0.3, 0.1]])
    joint = [0.2 * 0.6**2, 0.5 * 0.3**2, 0.3 * 0.1**2]
    expected = torch.tensor([[value / sum(joint) for value in joint]])
    torch.testing.assert_close(with_text(o, t, weight=2.0), expected)


@given(st.floats(0, 3), st.integers(0, 1000))
def test_with_text_stays_a_distribution_and_hears_no_missing_text(weight, seed):
    gen = torch.Generator().manual_seed(seed)
    o, t = (3 * torch.randn(2, 4, 5, generator=gen)).softmax(-1)
    t[2] = 0
    found = with_text(o, t, weight=weight)
    torch.testing.assert_close(found.sum(1), torch.ones(4))
    assert torch.equal(found[2], o[2])
    flat = torch.full_like(t, 0.2)
    torch.testing.assert_close(with_text(o, flat, weight=weight), o)
    torch.testing.assert_close(with_text(o, t, weight=0.0), o)


def test_a_class_that_nobody_believes_in_breaks_nothing():
    certain = torch.tensor([[1.0, 0.0]])
    found = with_text(certain, certain.flip(1), weight=1.0)
    assert found.isfinite().all()
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5]]))


# ---------------------------------------------------------------------------- multi-label


def slow_rule_binary(o: Tensor, y: Tensor, anchored: Tensor, gamma: float, protect: bool):
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
def test_binary_rule_equals_the_slow_one(b, seed, gamma, protect):
    gen = torch.Generator().manual_seed(seed)
    o = torch.randint(0, 17, (b, 3), generator=gen) / 16
    y = torch.randint(0, 2, (b, 3), generator=gen)
    anchored = (y == 1) & (torch.rand(b, 3, generator=gen) < 0.3)
    found = adjust_binary(o, y, anchored, gamma=gamma, protect_anchors=protect)
    wanted = slow_rule_binary(o, y, anchored, gamma, protect)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def binary(row: list[float], y: list[int], anchored: list[int], protect: bool = True):
    labels, decisions = adjust_binary(
        torch.tensor([row]),
        torch.tensor([y]),
        torch.tensor([anchored]).bool(),
        gamma=0.75,
        protect_anchors=protect,
    )
    return labels[0].tolist(), [PairDecision(int(d)).name for d in decisions[0]]


def test_binary_rule_is_strict_on_both_sides():
    assert binary([0.75, 0.25, 0.5], [0, 1, 1], [0, 0, 0]) == ([0, 1, 1], ["KEEP"] * 3)
    assert binary([0.8, 0.2, 0.5], [0, 1, 1], [0, 0, 0]) == ([1, 0, 1], ["ADD", "REMOVE", "KEEP"])


def test_a_sample_that_lost_every_label_is_out_but_one_that_had_none_is_not():
    assert binary([0.1, 0.1], [1, 0], [0, 0]) == ([NULL, NULL], ["REMOVE", "KEEP"])
    assert binary([0.1, 0.1], [0, 0], [0, 0]) == ([0, 0], ["KEEP", "KEEP"])
    assert binary([0.1, 0.9], [1, 0], [0, 0]) == ([0, 1], ["REMOVE", "ADD"])


def test_only_the_anchored_labels_of_an_anchor_are_protected():
    assert binary([0.1, 0.1], [1, 1], [1, 0]) == ([1, 0], ["KEEP", "REMOVE"])
    assert binary([0.1, 0.1], [1, 1], [1, 0], protect=False) == ([NULL, NULL], ["REMOVE"] * 2)
