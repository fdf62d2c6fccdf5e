"""The learning rate against a slow reference that walks through the steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.config import Schedule
from capro.train.loop import learning_rate


def slow_rates(epochs: int, warmup: int, per_epoch: int, peak: float) -> list[float]:
    rates = []
    warm_steps = min(warmup, epochs) * per_epoch
    for i in range(1, warm_steps + 1):
        rates.append(peak * i / warm_steps)
    left = epochs * per_epoch - warm_steps
    for i in range(left):
        angle = math.pi * i / left
        rates.append(peak * (1 + math.cos(angle)) / 2)
    return rates


@given(
    epochs=st.integers(1, 12),
    warmup=st.integers(0, 14),
    per_epoch=st.integers(1, 7),
    peak=st.floats(1e-4, 10),
)
def test_rate_equals_the_slow_reference(epochs, warmup, per_epoch, peak):
    schedule = Schedule(epochs=epochs, warmup_epochs=warmup, lr=peak)
    rates = [
        learning_rate(step, steps_per_epoch=per_epoch, schedule=schedule)
        for step in range(epochs * per_epoch)
    ]
    assert rates == pytest.approx(slow_rates(epochs, warmup, per_epoch, peak))
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in rates)


def test_peak_is_reached_and_the_end_is_near_zero():
    schedule = Schedule(epochs=100, warmup_epochs=5, lr=0.1)
    rates = [learning_rate(s, steps_per_epoch=10, schedule=schedule) for s in range(1000)]
    assert rates[49] == rates[50] == max(rates) == 0.1
    assert rates[-1] < 1e-6
