"""The share of wrong labels, against known noise and a slow reference."""

from __future__ import annotations

import numpy as np
import pytest

from capro.results import neighbourhood
from capro.results.neighbourhood import noise_from_anchors


def made(share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels with noise, and 100 right anchors."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 6, 1200)
    v = np.eye(6)[truth] + rng.normal(0, 0.15, (1200, 6))
    labels = truth.copy()
    wrong = rng.permutation(np.arange(200, 1200))[: int(share * 1200)]
    labels[wrong] = (truth[wrong] + rng.integers(1, 6, len(wrong))) % 6
    return v.astype(np.float32), labels, np.arange(100)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_noise_is_found_where_classes_are_apart(share: float) -> None:
    assert noise_from_anchors(*made(share)) == pytest.approx(share, abs=0.04)


def slow_noise(v: np.ndarray, labels: np.ndarray, anchors: np.ndarray) -> float:
    """The rule in loops, over dense cosines."""
    n, c = len(v), 6
    k = min(neighbourhood.NOISE_VOTERS, n // c // 2)
    unit = v / np.linalg.norm(v, axis=1, keepdims=True)
    agrees = []
    for i in range(n):
        near = sorted((j for j in range(n) if j != i), key=lambda j: -float(unit[i] @ unit[j]))[:k]
        votes = [sum(labels[j] == x for j in near) for x in range(c)]
        winners = [x for x in range(c) if votes[x] == max(votes)]
        first = labels[near[0]]
        agrees.append((first if first in winners else winners[0]) == labels[i])
    wrong = 0.0
    for x in range(c):
        own = [i for i in range(n) if labels[i] == x]
        rest = [i for i in own if i not in set(anchors.tolist())]
        a = np.mean([agrees[i] for i in own if i in set(anchors.tolist())])
        r = np.mean([agrees[i] for i in rest])
        wrong += min(1.0, max(0.0, (a - r) / (a - (1 - a) / (c - 1)))) * len(rest)
    return wrong / n


def test_noise_equals_a_slow_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    v, labels, anchors = made(0.3)
    at = np.r_[0:60, 700:800]  # anchors are among the first
    args = v[at], labels[at], anchors[:60]
    monkeypatch.setattr(neighbourhood, "VOTE_ROWS", 33)
    assert noise_from_anchors(*args) == pytest.approx(slow_noise(*args))


def test_anchors_that_look_alike_do_not_raise_the_estimate() -> None:
    """Right samples that differ from the anchors are not noise: the rest votes as well."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 4, 800)
    plain = np.arange(800) >= 100  # anchors sit in a corner of their class
    v = np.eye(8)[truth] + 0.8 * np.eye(8)[truth + 4] * plain[:, None]
    v += rng.normal(0, 0.25, v.shape)
    found = noise_from_anchors(v.astype(np.float32), truth, np.arange(100))
    assert found == pytest.approx(0, abs=0.03)


def test_noise_is_unknown_where_anchors_look_like_others() -> None:
    rng = np.random.default_rng(0)
    v, labels = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, 10, 200)
    assert noise_from_anchors(v, labels, np.arange(60)) is None
    assert noise_from_anchors(v, labels, np.arange(0)) is None
    assert noise_from_anchors(v[:9], labels[:9], np.arange(3)) is None
