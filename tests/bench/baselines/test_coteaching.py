"""Small-loss selection and Co-teaching (Han et al. 2018) on data where the noise is known."""

from __future__ import annotations

import pytest
import torch

from capro.bench.baselines.coteaching import SmallLoss, learn_from_small_losses, smallest
from capro.bench.baselines.objectives import sample_losses
from tests.bench.baselines.toy_work import ToyWork, batch

NOISE = 0.4


@pytest.mark.parametrize("nets", [1, 2])
def test_choosing_small_losses_beats_vanilla_where_two_fifths_are_wrong(nets: int) -> None:
    work = ToyWork(noise=NOISE, overrides=("pretrain.epochs=30",))
    made = learn_from_small_losses(nets)(work)
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.1
    assert made[1] == {"noise": NOISE}


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
