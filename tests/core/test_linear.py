"""Linear classifiers: against a reference, out of fold, calibrated."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import one_hot

from capro.core.linear import NO_CALIBRATION, assign_folds, calibrate, cross_entropy, judge_folds, linear
from tests.core.cases import FEW, SEEDS, distributions, generator, made_up


@given(SEEDS)
@FEW
def test_cross_entropy_is_the_sum_over_classes(seed):
    logits = torch.randn(4, 3, generator=generator(seed))
    q = distributions(4, 3, seed + 1)
    for i in range(4):
        total = sum(math.exp(v) for v in logits[i].tolist())
        slow = -sum(float(q[i, c]) * math.log(math.exp(float(logits[i, c])) / total) for c in range(3))
        assert cross_entropy(logits, q)[i] == pytest.approx(slow, abs=1e-4)
        bits = 0.0
        for c in range(3):
            p = 1 / (1 + math.exp(-float(logits[i, c])))
            bits -= float(q[i, c]) * math.log(p) + (1 - float(q[i, c])) * math.log(1 - p)
        assert cross_entropy(logits, q, multi_label=True)[i] == pytest.approx(bits, abs=1e-4)


@given(SEEDS)
@FEW
def test_the_gradient_of_cross_entropy_is_that_of_the_plain_formula(seed):
    """Also of targets that do not sum to 1, and of logits that exp cannot hold."""
    q = distributions(4, 3, seed) * torch.tensor([1.0, 0.5, 0.0, 2.0])[:, None]
    logits = torch.randn(4, 3, generator=generator(seed)) + torch.tensor([0.0, 200.0, -200.0, 0.0])[:, None]
    weight = torch.rand(4, generator=generator(seed + 1))
    ours, plain = (logits.clone().requires_grad_() for _ in range(2))
    found = (weight * cross_entropy(ours, q)).sum()
    expected = -(weight * (q * plain.log_softmax(1)).sum(1)).sum()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    found.backward(retain_graph=True)
    expected.backward()
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-4)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()


def test_linear_is_ridge_bound_multinomial_regression():
    x, _, _, y, _ = made_up(120, 3)
    decay = 1e-3
    ours = linear(x, one_hot(y, 3).float(), decay=decay, steps=300)
    theirs = LogisticRegression(C=1 / (2 * len(x) * decay), tol=1e-8, max_iter=2000)
    expected = theirs.fit(x.numpy(), y.numpy()).predict_proba(x.numpy())
    assert np.abs(ours(x).softmax(1).numpy() - expected).max() < 0.01


def test_linear_without_features_is_the_frequency():
    x = torch.zeros(10, 2)
    q = one_hot(torch.tensor([0] * 9 + [1]), 2).float()
    assert linear(x, q)(x).softmax(1)[0, 0] == pytest.approx(0.9, abs=0.01)


@given(st.integers(0, 50), st.integers(1, 6), SEEDS)
@FEW
def test_folds_are_nearly_equal(n, folds, seed):
    sizes = torch.bincount(assign_folds(n, folds, seed), minlength=folds)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_a_label_never_judges_itself(seed):
    """Logits of a fold do not depend on any target within it."""
    x, q = torch.randn(30, 4, generator=generator(seed)), distributions(30, 3, seed)
    fold = assign_folds(30, 3, seed)
    before = judge_folds(x, q, fold).logits
    changed = q.clone()
    changed[fold == 0] = torch.tensor([1.0, 0, 0])
    after = judge_folds(x, changed, fold).logits
    assert torch.equal(before[fold == 0], after[fold == 0])
    assert not torch.equal(before[fold != 0], after[fold != 0])


def test_offsets_are_fitted_with_the_rest_and_judged_out_of_fold():
    x, _, _, y, _ = made_up(300, 3)
    g = generator(1)
    q = one_hot(y, 3).float()
    useful, useless = q + 0.5 * torch.randn(300, 3, generator=g), torch.randn(300, 3, generator=g)
    offsets = torch.stack([useful, useless], 2)
    fold = assign_folds(300, 3, 0)
    found = judge_folds(x, q, fold, offsets=offsets)
    assert found.model.scales[0] > 2
    assert found.model.scales[1].abs() < 0.5
    right = [
        (logits.argmax(1) == y).float().mean() for logits in (found.logits, judge_folds(x, q, fold).logits)
    ]
    assert right[0] > right[1] + 0.1
    changed = q.clone()
    changed[fold == 0] = torch.tensor([1.0, 0, 0])
    again = judge_folds(x, changed, fold, offsets=offsets).logits
    assert torch.equal(found.logits[fold == 0], again[fold == 0])


# --- calibration


@given(SEEDS, st.floats(0.2, 3.0))
@FEW
def test_a_known_scale_is_found_again(seed, scale):
    truth = 2 * torch.randn(400, 4, generator=generator(seed))
    calibration = calibrate(truth / scale, truth.softmax(1))
    assert calibration.scale == pytest.approx(scale, rel=0.02)
    assert calibration.shift == 0


@given(SEEDS, st.floats(0.3, 2.0), st.floats(-1.0, 1.0))
@FEW
def test_multi_label_finds_scale_and_shift_again(seed, scale, shift):
    truth = 2 * torch.randn(400, 3, generator=generator(seed))
    calibration = calibrate((truth - shift) / scale, truth.sigmoid(), multi_label=True)
    assert (calibration.scale, calibration.shift) == pytest.approx((scale, shift), abs=0.05)


@given(SEEDS)
@FEW
def test_the_order_of_classes_stays(seed):
    logits = torch.randn(30, 4, generator=generator(seed))
    q = torch.rand(30, 4, generator=generator(seed + 1))
    calibrated = calibrate(logits, q)(logits)
    assert calibrated.argsort(1).equal(logits.argsort(1))


def test_nothing_held_out_changes_nothing():
    assert calibrate(torch.zeros(0, 3), torch.zeros(0, 3)) == NO_CALIBRATION


def test_a_posterior_that_is_all_none_of_these_changes_no_order():
    calibration = calibrate(torch.tensor([[5.0, -5.0]] * 4), torch.zeros(4, 2))
    assert calibration.scale > 0
