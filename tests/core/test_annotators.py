"""Annotators: each rate against an obvious reference; silence says nothing."""

import math

import pytest
import torch
from hypothesis import given

from capro.core.annotators import LABEL_SPREAD, LABEL_TRUST, LabelTable, TagRates, right_labels
from tests.core.cases import FEW, SEEDS, distributions, generator


@given(SEEDS)
@FEW
def test_label_given_truth_counts(seed):
    q, y = distributions(20, 4, seed), torch.randint(-1, 3, (20,), generator=generator(seed))
    table = LabelTable.even(3).fitted(q, y).evidence(torch.arange(3)).exp().T
    assert table.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    for z in range(4):
        slow = [LABEL_SPREAD / 3 + (LABEL_TRUST if z == c else 0) for c in range(3)]
        for i in range(20):
            if y[i] >= 0:
                slow[int(y[i])] += float(q[i, z])
        assert table[z].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-4)


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_a_label_is_right_in_six_of_ten_before_anything_is_known(classes):
    table = LabelTable.even(classes).evidence(torch.arange(classes)).exp().T
    slow = torch.full((classes + 1, classes), 0.4 / max(1, classes - 1))
    slow[range(classes), range(classes)] = 0.6 if classes > 1 else 1.0
    slow[classes] = 1 / classes
    assert torch.allclose(table, slow)


def test_no_label_is_no_evidence():
    table = LabelTable.even(3).fitted(distributions(5, 4, 0), torch.tensor([0, 2, -1, 2, -1]))
    found = table.evidence(torch.tensor([-1, 1]))
    assert found[0].tolist() == [0.0] * 4
    assert found[1, 1] > found[1, 0]  # label 1 occurs nowhere: pseudo-counts alone


def test_ten_thousand_classes_need_no_table_of_class_by_class():
    y = torch.randint(0, 10_000, (50,), generator=generator(0))
    table = LabelTable.even(10_000).fitted(torch.full((50, 10_001), 1 / 10_001), y)
    assert table.counts.numel() <= 51 * 10_001


@given(SEEDS)
@FEW
def test_tag_evidence_is_the_likelihood_ratio(seed):
    q = torch.rand(30, 3, generator=generator(seed))
    y = (torch.rand(30, 3, generator=generator(seed + 1)) < q).float()
    rates = TagRates.even(3).fitted(q, y)
    (hit, false), found = (rates.hit, rates.false), rates.evidence(y)
    for i in range(30):
        for c in range(3):
            shown = float(hit[c]) if y[i, c] else 1 - float(hit[c])
            absent = float(false[c]) if y[i, c] else 1 - float(false[c])
            assert found[i, c] == pytest.approx(math.log(shown / absent), abs=1e-4)


def test_tag_rates_by_hand():
    q = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    rates = TagRates.even(1).fitted(q, torch.tensor([[1.0], [0.0], [1.0], [0.0]]))
    assert float(rates.hit) == pytest.approx((1 + 3) / (2 + 5))
    assert float(rates.false) == pytest.approx((1 + 0.05) / (2 + 5))


@given(SEEDS)
@FEW
def test_right_labels_are_counted_over_all_classes(seed):
    q, y = distributions(30, 4, seed), torch.randint(-1, 3, (30,), generator=generator(seed))
    known = [i for i in range(30) if y[i] >= 0]
    right, some = sum(float(q[i, y[i]]) for i in known), sum(float(1 - q[i, 3]) for i in known)
    assert abs(right_labels(q, y) - (right + 12) / (some + 17)) < 1e-4


@pytest.mark.parametrize("classes", [2, 3])
def test_an_unanswered_tag_is_no_evidence_and_is_not_counted(classes):
    q = torch.rand(40, classes, generator=generator(0))
    y = (torch.rand(40, classes, generator=generator(1)) < q).long()
    silent = torch.rand(40, classes, generator=generator(2)) < 0.3
    rates = TagRates.even(classes).fitted(q, torch.where(silent, -1, y))
    for c in range(classes):
        heard = ~silent[:, c]
        alone = TagRates.even(1).fitted(q[heard, c : c + 1], y[heard, c : c + 1])
        assert (float(rates.hit[c]), float(rates.false[c])) == pytest.approx(
            (float(alone.hit), float(alone.false)), abs=1e-5
        )
    assert not rates.evidence(torch.where(silent, -1, y))[silent].any()


def test_an_annotator_that_nothing_is_known_of_says_nothing():
    answers = torch.tensor([0, 0, 3, 1, -1, 3])
    evidence = LabelTable.silent(3, answers).evidence(answers)
    assert torch.allclose(evidence, evidence[:, :1].expand_as(evidence))
    assert not evidence[4].any()


@given(SEEDS)
@FEW
def test_counted_answers_against_a_loop(seed):
    g = generator(seed)
    answers, q = torch.randint(-1, 4, (30,), generator=g), distributions(30, 4, seed)
    given = [int(answer) for answer in answers if answer >= 0]
    frequency = [(given.count(a) + 1) / (len(given) + 4) for a in range(4)]
    evidence = LabelTable.silent(3, answers).fitted(q, answers).evidence(answers)
    for i, a in enumerate(answers.tolist()):
        for z in range(4):
            if a < 0:
                assert evidence[i, z] == 0
                continue
            said = sum(float(q[j, z]) for j in range(30) if int(answers[j]) == a)
            size = sum(float(q[j, z]) for j in range(30) if int(answers[j]) >= 0)
            wanted = (said + LABEL_SPREAD * frequency[a]) / (size + LABEL_SPREAD)
            assert float(evidence[i, z].exp()) == pytest.approx(wanted, rel=1e-4)
