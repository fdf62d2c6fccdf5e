"""What baselines share: folds and cross-validation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capro.bench.baselines.work import cross_validated, folds


@given(st.integers(1, 60), st.integers(1, 5), st.integers(2, 5), st.integers(0, 9))
def test_folds_deal_out_every_class_evenly(n: int, c: int, count: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, c, n)
    found = folds(labels, count, seed=seed)
    sizes = np.bincount(found, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    for label in range(c):
        own = np.bincount(found[labels == label], minlength=count)
        assert own.max() - own.min() <= 1


def test_cross_validation_never_judges_what_it_has_seen() -> None:
    labels = np.arange(10) % 2
    seen_by: list[set[int]] = []

    def learn(seen: np.ndarray, held: np.ndarray) -> np.ndarray:
        assert not set(seen) & set(held)
        seen_by.append(set(held.tolist()))
        return np.tile(held[:, None], (1, 2)).astype(np.float32)

    found = cross_validated(labels, learn, count=3, seed=0)
    np.testing.assert_array_equal(found[:, 0], np.arange(10))
    assert sum(map(len, seen_by)) == 10
