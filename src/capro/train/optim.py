"""Learning rate: linear warm-up, then cosine decay; a pure function of the step, so resume is exact."""

from __future__ import annotations

import math

from capro.config import Schedule


def learning_rate(step: int, *, steps_per_epoch: int, schedule: Schedule) -> float:
    """The rate of a step, counted from 0 over all epochs.

    Warm-up rises linearly and reaches the peak at its last step; the cosine falls from the peak
    towards 0 over the remaining steps.

    >>> from capro.config import Schedule
    >>> plan = Schedule(epochs=4, lr=1.0, warmup_epochs=2)
    >>> [round(learning_rate(s, steps_per_epoch=1, schedule=plan), 3) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warm = min(schedule.warmup_epochs, schedule.epochs) * steps_per_epoch
    if step < warm:
        return schedule.lr * (step + 1) / warm
    rest = max(1, schedule.epochs * steps_per_epoch - warm)
    return schedule.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / rest))
