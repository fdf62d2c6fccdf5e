"""Evidence: each formula against an obvious reference."""

import math

import pytest
import torch
from hypothesis import given

from capro.core import plus
from capro.core.plus.evidence import LABEL_SPREAD, LABEL_TRUST
from tests.core.plus.cases import FEW, SEEDS, distributions, generator


@given(SEEDS)
@FEW
def test_pool_is_bayes_rule(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    q = plus.pool(words.log(), picture.log(), prior)
    for i in range(5):
        slow = [float(words[i, z] * picture[i, z] / prior[z]) for z in range(4)]
        assert q[i].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-4)


@given(SEEDS)
@FEW
def test_cautious_pool_reference(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    q = plus.cautious_pool(words.log(), picture.log(), prior)
    for i in range(5):
        known = [
            sum(float(view[i, z]) * math.log(float(view[i, z] / prior[z])) for z in range(4))
            for view in (words, picture)
        ]
        w = known[0] / sum(known)
        slow = [
            float(prior[z]) * float(words[i, z] / prior[z]) ** w * float(picture[i, z] / prior[z]) ** (1 - w)
            for z in range(4)
        ]
        assert q[i].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-3)


@given(SEEDS)
@FEW
def test_a_view_that_is_repeated_adds_nothing(seed):
    words, prior = distributions(5, 4, seed), distributions(1, 4, seed + 2)[0]
    torch.testing.assert_close(plus.cautious_pool(words.log(), words.log(), prior), words, atol=1e-4, rtol=0)


def test_pool_by_hand():
    half = torch.tensor([0.5, 0.5])
    sure = torch.tensor([[0.8, 0.2]]).log()
    assert plus.pool(sure, half.log()[None], half)[0, 0] == pytest.approx(0.8)  # one view knows nothing
    assert plus.pool(sure, sure, half)[0, 0] == pytest.approx(0.64 / 0.68)
    assert plus.cautious_pool(sure, sure, half)[0, 0] == pytest.approx(0.8)  # wholly dependent


@given(SEEDS)
@FEW
def test_agreement_reference_and_zero_where_one_view_is_the_prior(seed):
    words, picture = distributions(5, 4, seed), distributions(5, 4, seed + 1)
    prior = distributions(1, 4, seed + 2)[0]
    found = plus.agreement(words.log(), picture.log(), prior)
    for i in range(5):
        slow = sum(float(words[i, z] * picture[i, z] / prior[z]) for z in range(4))
        assert found[i] == pytest.approx(math.log(slow), abs=1e-4)
    nothing = plus.agreement(words.log(), prior.log().expand(5, 4), prior)
    assert nothing.abs().max() < 1e-4


@given(SEEDS)
@FEW
def test_temperature_agrees_at_least_as_well(seed):
    logits = 3 * torch.randn(60, 4, generator=generator(seed))
    words = (logits + torch.randn(60, 4, generator=generator(seed + 1))).log_softmax(1)
    prior = words.exp().mean(0)
    before = plus.agreement(words, logits.log_softmax(1), prior).mean()
    after = plus.temperature(logits, words, prior)(logits)
    assert after.exp().sum(1).tolist() == pytest.approx([1.0] * 60, abs=1e-4)
    assert plus.agreement(words, after, prior).mean() >= before - 1e-3


def test_temperature_flattens_a_picture_that_knows_nothing():
    words = distributions(400, 3, 0).log()
    noise = 10 * torch.randn(400, 3, generator=generator(1))
    found = plus.temperature(noise, words, words.exp().mean(0))(noise)
    assert found.exp().max(1)[0].mean() < 0.6


@given(SEEDS)
@FEW
def test_label_given_truth_counts(seed):
    q, y = distributions(20, 4, seed), torch.randint(-1, 3, (20,), generator=generator(seed))
    table = plus.label_given_truth(q, y, 3).evidence(torch.arange(3)).exp().T
    assert table.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    for z in range(4):
        slow = [LABEL_SPREAD / 3 + (LABEL_TRUST if z == c else 0) for c in range(3)]
        for i in range(20):
            if y[i] >= 0:
                slow[int(y[i])] += float(q[i, z])
        assert table[z].tolist() == pytest.approx([s / sum(slow) for s in slow], abs=1e-4)


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_a_label_is_right_in_six_of_ten_before_anything_is_known(classes):
    table = plus.LabelTable.even(classes).evidence(torch.arange(classes)).exp().T
    slow = torch.full((classes + 1, classes), 0.4 / max(1, classes - 1))
    slow[range(classes), range(classes)] = 0.6 if classes > 1 else 1.0
    slow[classes] = 1 / classes
    assert torch.allclose(table, slow)


def test_no_label_is_no_evidence():
    table = plus.label_given_truth(distributions(5, 4, 0), torch.tensor([0, 2, -1, 2, -1]), 3)
    found = table.evidence(torch.tensor([-1, 1]))
    assert found[0].tolist() == [0.0] * 4
    assert found[1, 1] > found[1, 0]  # label 1 occurs nowhere: pseudo-counts alone


def test_ten_thousand_classes_need_no_table_of_class_by_class():
    y = torch.randint(0, 10_000, (50,), generator=generator(0))
    table = plus.label_given_truth(torch.full((50, 10_001), 1 / 10_001), y, 10_000)
    assert table.counts.numel() <= 51 * 10_001


@given(SEEDS)
@FEW
def test_tag_evidence_is_the_likelihood_ratio(seed):
    q = torch.rand(30, 3, generator=generator(seed))
    y = (torch.rand(30, 3, generator=generator(seed + 1)) < q).float()
    hit, false = plus.tag_rates(q, y)
    found = plus.tag_evidence(y, hit, false)
    for i in range(30):
        for c in range(3):
            shown = float(hit[c]) if y[i, c] else 1 - float(hit[c])
            absent = float(false[c]) if y[i, c] else 1 - float(false[c])
            assert found[i, c] == pytest.approx(math.log(shown / absent), abs=1e-4)


def test_tag_rates_by_hand():
    q = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    hit, false = plus.tag_rates(q, torch.tensor([[1.0], [0.0], [1.0], [0.0]]))
    assert float(hit) == pytest.approx((1 + 3) / (2 + 5))
    assert float(false) == pytest.approx((1 + 0.05) / (2 + 5))


@given(SEEDS)
@FEW
def test_state_prior_reference(seed):
    q = distributions(7, 4, seed)
    slow = [(1 + sum(float(row[z]) for row in q)) / (7 + 4) for z in range(4)]
    assert plus.state_prior(q).tolist() == pytest.approx(slow, abs=1e-5)


def test_a_state_that_nobody_is_in_is_no_certain_surprise():
    """Without pseudo-counts a picture that says none of these would agree best with words that exclude it."""
    words = torch.full((30, 4), 1e-7)
    words[torch.arange(30), torch.arange(30) % 3] = 1.0
    words[0, 3] = 1e-4
    words = (words / words.sum(1, keepdim=True)).log()
    right, none = torch.full((2, 1, 4), 1e-9)
    right[0, 0], none[0, 3] = 1.0, 1.0
    for prior, fooled in ((words.exp().mean(0), True), (plus.state_prior(words.exp()), False)):
        gains = [float(plus.agreement(words[:1], picture.log(), prior)) for picture in (right, none)]
        assert (gains[1] > gains[0]) == fooled
