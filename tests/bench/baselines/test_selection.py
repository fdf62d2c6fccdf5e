"""Baselines that choose samples: small parts by hand, and data where the noise is known."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from capro.bench.baselines import selection
from capro.bench.baselines.objectives import sample_losses
from capro.bench.baselines.selection import SmallLoss, coteaching, smallest, smallloss
from capro.bench.baselines.work import Learned, Work, estimate_noise
from capro.errors import ConfigError
from capro.train.tasks import MultiLabelTask, SingleLabelTask
from tests.bench.baselines.toy_work import ToyWork, batch


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
    assert estimate_noise(beliefs, given) == pytest.approx(3 / 60)


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


NOISE = 0.4


@pytest.mark.parametrize("learn", [smallloss, coteaching])
def test_choosing_small_losses_beats_vanilla_where_two_fifths_are_wrong(
    learn: Callable[[Work], Learned],
) -> None:
    work = ToyWork(noise=NOISE, overrides=("pretrain.epochs=30",))
    made = learn(work)
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.1
    assert made[1] == {"noise": NOISE}


@pytest.mark.parametrize("epoch", [0, 3, 5, 9])
def test_each_network_learns_from_what_the_other_finds_easy(epoch: int) -> None:
    work = ToyWork(30, NOISE)
    v, y, nets = work.v, work.training.labels, (work.net(), work.net("second"))
    made = SmallLoss(work, *nets, lambda_prj=0.0, noise=NOISE, ramp=5)
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
