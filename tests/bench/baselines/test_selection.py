"""Baselines that choose samples."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capro.bench.baselines import selection
from capro.bench.baselines.coteaching import smallest
from capro.bench.baselines.objectives import sample_losses
from capro.errors import ConfigError
from capro.train.tasks import MultiLabelTask, SingleLabelTask


def test_without_cleanlab_the_hint_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(ConfigError) as error:
        selection.label_issues(np.ones((2, 2), np.float32), np.array([0, 1]))
    assert "capro[cleanlab]" in error.value.hint


def test_cleanlab_finds_swapped_labels() -> None:
    pytest.importorskip("cleanlab")
    y = np.repeat([0, 1, 2], 20)
    beliefs = np.full((60, 3), 0.05, np.float32)
    beliefs[np.arange(60), y] = 0.9
    given = y.copy()
    given[[0, 25, 45]] = [1, 2, 0]
    np.testing.assert_array_equal(np.flatnonzero(selection.label_issues(beliefs, given)), [0, 25, 45])
    assert selection.estimate_noise(beliefs, given) == pytest.approx(3 / 60)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(2, 5), st.integers(0, 9))
def test_folds_deal_out_every_class_evenly(n: int, c: int, count: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, c, n)
    found = selection.folds(labels, count, seed=seed)
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

    found = selection.cross_validated(labels, learn, count=3, seed=0)
    np.testing.assert_array_equal(found[:, 0], np.arange(10))
    assert sum(map(len, seen_by)) == 10


def test_vote_by_hand() -> None:
    train = np.array([[1, 0], [1, 0.1], [0, 1]], dtype=np.float32)
    found = selection.vote(train, np.array([0, 0, 1]), np.array([[2.0, 0]], np.float32), 2, k=2)
    np.testing.assert_allclose(found, [[1, 0]], atol=1e-5)
    members = np.array([[1, 1], [1, 0], [0, 1]])
    found = selection.vote(train, members, np.array([[2.0, 0]], np.float32), 2, k=2)
    np.testing.assert_allclose(found, [[1, 0.5]], atol=1e-2)


def test_small_losses() -> None:
    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0], [1.0, 0.0]])
    y = torch.tensor([0, 0, 0])
    losses = sample_losses(SingleLabelTask(2, 0.1), logits, y)
    assert smallest(losses, 0.34).tolist() == [0, 2]
    assert smallest(losses, 1.0).tolist() == [0]
    members = torch.tensor([[1, 0], [1, 0], [1, 0]])
    task = MultiLabelTask(2, 0.1, torch.ones(2))
    assert smallest(sample_losses(task, logits, members), 0.34).tolist() == [0, 2]
