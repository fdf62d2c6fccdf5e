"""Calibration: the scale is found again, the order stays, and nothing breaks on odd input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capro.core import plus
from tests.core.plus.cases import FEW, SEEDS, generator


@given(SEEDS, st.floats(0.2, 3.0))
@FEW
def test_a_known_scale_is_found_again(seed, scale):
    truth = 2 * torch.randn(400, 4, generator=generator(seed))
    found = plus.calibrate(truth / scale, truth.softmax(1))
    assert found.scale == pytest.approx(scale, rel=0.02)
    assert found.shift == 0


@given(SEEDS, st.floats(0.3, 2.0), st.floats(-1.0, 1.0))
@FEW
def test_several_labels_find_scale_and_shift_again(seed, scale, shift):
    truth = 2 * torch.randn(400, 3, generator=generator(seed))
    found = plus.calibrate((truth - shift) / scale, truth.sigmoid(), several=True)
    assert (found.scale, found.shift) == pytest.approx((scale, shift), abs=0.05)


@given(SEEDS)
@FEW
def test_the_order_of_classes_stays(seed):
    logits = torch.randn(30, 4, generator=generator(seed))
    q = torch.rand(30, 4, generator=generator(seed + 1))
    calibrated = plus.calibrate(logits, q)(logits)
    assert calibrated.argsort(1).equal(logits.argsort(1))


def test_nothing_held_out_changes_nothing():
    assert plus.calibrate(torch.zeros(0, 3), torch.zeros(0, 3)) == plus.NO_CALIBRATION


def test_a_posterior_that_is_all_none_of_these_changes_no_order():
    found = plus.calibrate(torch.tensor([[5.0, -5.0]] * 4), torch.zeros(4, 2))
    assert found.scale > 0
