"""The label rules: the paper's, the posterior's, and the texts' say, against slow references."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import one_hot

from capro.core.label_rule import (
    FITTED_ON,
    NULL,
    RIDGE,
    LabelDecision,
    PairDecision,
    TextEvidence,
    adjust,
    adjust_multi_label,
    decide,
    decide_multi_label,
    diagnose,
    fused_score,
    with_text,
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


# --- texts as evidence beside the fused score


def made(n: int = 300, c: int = 4, noise: float = 0.5, seed: int = 0):
    """Texts near the class texts of their labels."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(c, 8)).astype(np.float32)
    labels = rng.integers(0, c, n)
    texts = prototypes[labels] + noise * rng.normal(size=(n, 8)) * np.sqrt(8)
    return texts.astype(np.float32), prototypes, labels


def slow_belief(text, prototypes, tau, bias):
    if not text.any():
        return np.zeros(len(prototypes))
    cosines = [float(text @ p) / float(np.linalg.norm(text)) / float(np.linalg.norm(p)) for p in prototypes]
    weights = [np.exp(cosine / tau + float(b)) for cosine, b in zip(cosines, bias, strict=True)]
    return np.array(weights) / sum(weights)


def test_belief_is_a_softmax_of_cosines_and_zero_without_text():
    texts, prototypes, labels = made()
    texts[7] = 0
    witness = TextEvidence.fitted(texts, prototypes, labels)
    rows = np.array([3, 7, 200])
    slow = [slow_belief(texts[row], prototypes, witness.tau, witness.bias) for row in rows]
    np.testing.assert_allclose(witness.of(rows).numpy(), slow, atol=1e-5)


def test_the_fit_is_scipys():
    texts, prototypes, labels = made()
    texts[:20] = 0  # missing texts say nothing about it
    labels[20:40] = -1  # nor do missing labels
    fitted = TextEvidence.fitted(texts, prototypes, labels)

    def unlikely(x):
        beliefs = [slow_belief(texts[i], prototypes, 1 / x[0], x[1:])[labels[i]] for i in range(40, 300)]
        return -np.log(beliefs).mean() + RIDGE * np.mean(x[1:] ** 2)

    best = minimize(unlikely, np.array([5.0, 0, 0, 0, 0]), method="L-BFGS-B").x
    assert 1 / fitted.tau == pytest.approx(best[0], rel=0.01)
    np.testing.assert_allclose(fitted.bias.numpy(), best[1:], atol=0.02)


def test_texts_that_do_not_fit_the_labels_are_hardly_heard():
    texts, prototypes, labels = made()
    shuffled = np.random.default_rng(1).permutation(labels)
    useful = TextEvidence.fitted(texts, prototypes, labels)
    useless = TextEvidence.fitted(texts, prototypes, shuffled)
    everyone = np.arange(len(texts))
    assert useless.of(everyone).max() < 0.4
    assert useful.of(everyone).max(dim=1).values.mean() > 0.6


def test_texts_that_contradict_the_labels_say_nothing():
    texts, prototypes, labels = made(noise=0.1)
    liars = TextEvidence.fitted(-texts, prototypes, labels)
    assert liars.tau == np.inf
    np.testing.assert_allclose(liars.of(np.arange(5)).numpy(), 1 / 4)


def test_a_class_text_that_is_too_near_to_everyone_is_mended():
    texts, prototypes, labels = made(noise=0.3)
    prototypes[1:] += 2 * prototypes[0]  # three class texts that speak of the first class, too
    plain = replace(TextEvidence.fitted(texts, prototypes, labels), bias=torch.zeros(4))
    mended = TextEvidence.fitted(texts, prototypes, labels)
    everyone = np.arange(len(texts))
    right = [(w.of(everyone).argmax(dim=1).numpy() == labels).mean() for w in (plain, mended)]
    assert right[1] > right[0] + 0.02


@pytest.mark.parametrize("gone", ["texts", "labels"])
def test_without_texts_or_labels_there_is_nothing_to_fit(gone):
    texts, prototypes, labels = made(n=5)
    texts, labels = (texts * 0, labels) if gone == "texts" else (texts, labels * 0 - 1)
    assert TextEvidence.fitted(texts, prototypes, labels).tau == np.inf


def test_a_class_without_samples_keeps_the_fit_finite():
    texts, prototypes, labels = made()
    labels[labels == 2] = -1
    witness = TextEvidence.fitted(texts, prototypes, labels)
    assert witness.bias.isfinite().all()
    assert witness.of(np.arange(300))[:, 2].mean() < 0.02


def test_a_large_set_is_fitted_on_a_part_of_it():
    texts, prototypes, labels = made(n=FITTED_ON + 500)
    asked = []

    class Counted(np.ndarray):
        def __getitem__(self, key):
            asked.append(np.size(key))
            return np.asarray(super().__getitem__(key))

    whole = TextEvidence.fitted(texts[:FITTED_ON], prototypes, labels[:FITTED_ON]).tau
    found = TextEvidence.fitted(texts.view(Counted), prototypes, labels)
    assert asked == [FITTED_ON]
    assert found.tau == pytest.approx(whole, rel=0.05)


@given(st.integers(0, 100), st.floats(0.05, 3))
def test_beliefs_do_not_depend_on_the_length_of_texts(seed, factor):
    texts, prototypes, labels = made(n=20, seed=seed)
    a = TextEvidence.fitted(texts, prototypes, labels)
    b = TextEvidence.fitted(texts * np.float32(factor), prototypes, labels)
    rows = np.arange(20)
    torch.testing.assert_close(a.of(rows), b.of(rows), atol=1e-3, rtol=1e-3)
