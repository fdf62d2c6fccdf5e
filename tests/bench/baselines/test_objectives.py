"""Objectives that baselines share, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capro.bench.baselines.objectives import WeightedLabels, balanced_weights
from tests.bench.baselines.toy_work import CLASSES, ToyWork, batch


def test_soft_labels_equal_loops() -> None:
    work = ToyWork(n=20)
    net, targets = work.net(), torch.rand(20, CLASSES, generator=torch.Generator().manual_seed(0))
    targets, weights = targets / targets.sum(dim=1, keepdim=True), torch.linspace(0, 2, 20)
    found = WeightedLabels(work, net, targets, weights=weights).terms(batch(work.v, 0))["cls"]
    p = net(torch.from_numpy(work.v)).query.p.log_softmax(dim=1).detach()
    slow = [float(weights[i] * -sum(targets[i, c] * p[i, c] for c in range(CLASSES))) for i in range(20)]
    assert float(found.detach()) == pytest.approx(sum(slow) / 20, rel=1e-5)


def test_soft_labels_are_mixed_like_their_inputs() -> None:
    """Of a batch whose samples are all alike nothing is changed; of two kinds a step never sees one of them alone."""
    work = ToyWork(n=20)
    net, targets = work.net(), torch.eye(CLASSES)[[0] * 10 + [1] * 10]
    weights = torch.ones(20)
    same = WeightedLabels(work, net, targets[:1].repeat(20, 1), weights=weights, alpha=0.2)
    plain = WeightedLabels(work, net, targets[:1].repeat(20, 1), weights=weights)
    alike = np.repeat(work.v[:1], 20, axis=0)
    for epoch in range(3):
        one, other = (made.terms(batch(alike, epoch))["cls"] for made in (same, plain))
        torch.testing.assert_close(one, other)
    mixed = WeightedLabels(work, net, targets, weights=weights, alpha=5.0)
    values = {float(mixed.terms(batch(work.v, epoch))["cls"].detach()) for epoch in (0, 1)}
    again = {float(mixed.terms(batch(work.v, epoch))["cls"].detach()) for epoch in (0, 1)}
    assert len(values) == 2  # each step draws anew
    assert values == again  # and the same when it is done again


def test_balanced_weights() -> None:
    labels = torch.tensor([2, 0, 0, 2, 2, 2, 0, 1])
    weights = balanced_weights(labels, 4)
    assert float(weights.mean()) == pytest.approx(1)
    sums = [float(weights[labels == c].sum()) for c in range(3)]
    assert sums == pytest.approx([8 / 3] * 3)


def test_weighted_labels_are_a_mean_of_weighted_losses() -> None:
    work, weights = ToyWork(n=20), torch.linspace(0, 2, 20)
    net, y = work.net(), work.training.labels
    seen: list[torch.Tensor] = []

    def weigh(now: object, losses: torch.Tensor) -> torch.Tensor:
        seen.append(losses)
        return weights

    made = WeightedLabels(work, net, weights=weigh)
    found = made.terms(batch(work.v, 0))["cls"]
    p = net(torch.from_numpy(work.v)).query.p.log_softmax(dim=1)
    slow = [-p[i, label] for i, label in enumerate(y.tolist())]
    torch.testing.assert_close(found, sum(w * one for w, one in zip(weights, slow, strict=True)) / 20)
    torch.testing.assert_close(seen[0], torch.stack(slow).detach())
    assert not seen[0].requires_grad
