"""Small-loss selection and Co-teaching (Han et al. 2018) on data where the noise is known; weighted labels."""

from __future__ import annotations

import pytest
import torch

from capro.bench.baselines.objectives import SmallLoss, WeightedLabels, sample_losses, smallest
from tests.bench.baselines.toy_work import ToyWork, batch

NOISE = 0.4


def accuracy(nets: int) -> float:
    """Of small-loss selection (1) or Co-teaching (2), on clean test samples."""
    work = ToyWork(noise=NOISE, overrides=("pretrain.epochs=30",))
    net, other = work.net(), work.net("second") if nets == 2 else None
    labels = work.training.labels
    work.fit(
        SmallLoss(net, other, work.task, labels, work.ranks, lambda_prj=1.0, noise=NOISE, ramp=10), "toy"
    )
    return work.accuracy(net)


def test_choosing_small_losses_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork(noise=NOISE, overrides=("pretrain.epochs=30",))
    vanilla = work.accuracy(work.step1())
    assert accuracy(1) > vanilla + 0.1
    assert accuracy(2) > vanilla + 0.1


@pytest.mark.parametrize("epoch", [0, 3, 5, 9])
def test_each_network_learns_from_what_the_other_finds_easy(epoch: int) -> None:
    work = ToyWork(30, NOISE)
    v, y, nets = work.v, work.training.labels, (work.net(), work.net("second"))
    made = SmallLoss(*nets, work.task, y, work.ranks, lambda_prj=0.0, noise=NOISE, ramp=5)
    made.begin_epoch(epoch, resumed=False)
    kept = round(30 * (1 - NOISE * min(epoch / 5, 1)))  # R(t) = 1 - tau min(t / T_k, 1)
    made.terms(batch(v, epoch))["cls"].backward()
    found = [net.heads.classifier.weight.grad.clone() for net in nets]
    for net, other, grad in zip(nets, reversed(nets), found, strict=True):
        net.zero_grad()
        with torch.no_grad():
            losses = sample_losses(work.task, other(torch.from_numpy(v)).query.p, y)
        rows = smallest(losses, NOISE * min(epoch / 5, 1))
        assert len(rows) == kept
        logits = net(torch.from_numpy(v[rows.numpy()])).query.p
        torch.nn.functional.cross_entropy(logits, y[rows]).backward()
        torch.testing.assert_close(grad, net.heads.classifier.weight.grad)


def test_weighted_labels_are_a_mean_of_weighted_losses() -> None:
    work, weights = ToyWork(n=20), torch.linspace(0, 2, 20)
    net, y = work.net(), work.training.labels
    seen: list[torch.Tensor] = []

    def weigh(now: object, losses: torch.Tensor) -> torch.Tensor:
        seen.append(losses)
        return weights

    made = WeightedLabels(net, work.task, y, work.ranks, weigh=weigh)
    found = made.terms(batch(work.v, 0))["cls"]
    p = net(torch.from_numpy(work.v)).query.p.log_softmax(dim=1)
    slow = [-p[i, label] for i, label in enumerate(y.tolist())]
    torch.testing.assert_close(found, sum(w * one for w, one in zip(weights, slow, strict=True)) / 20)
    torch.testing.assert_close(seen[0], torch.stack(slow).detach())
    assert not seen[0].requires_grad
