"""SCC: targets by hand, and that they help where labels are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capro.bench.baselines import scc
from tests.bench.baselines.toy_work import CLASSES, ToyWork


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_vanilla_and_more_of_the_web_labels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fifths of the labels are wrong, and step 1 has not learnt them by heart yet."""
    work = ToyWork(seed=seed, overrides=("pretrain.epochs=6",))
    made = scc.learn(work)
    assert 0 < made[1]["confidence"] < 1
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.03
    trusting = torch.eye(CLASSES)[work.training.labels], torch.ones(len(work.truth), 1)
    monkeypatch.setattr(scc, "soft_targets", lambda *_: trusting)  # the same with confidence 1
    assert work.accuracy(made) > work.accuracy(scc.learn(work)) + 0.05


def test_with_several_labels_it_learns() -> None:
    work = ToyWork(several=True)
    assert work.accuracy(scc.learn(work)) > work.accuracy(work.step1())


def test_targets_equal_loops() -> None:
    rng = np.random.default_rng(0)
    s = rng.dirichlet(np.ones(CLASSES), 9)
    y = rng.integers(0, CLASSES, 9)
    found, confidence = scc.soft_targets(torch.from_numpy(s), torch.from_numpy(y))
    for i in range(9):
        c = s[i][y[i]] ** 2
        assert float(confidence[i, 0]) == pytest.approx(c)
        for k in range(CLASSES):
            assert float(found[i, k]) == pytest.approx(c * (k == y[i]) + (1 - c) * s[i][k])
    np.testing.assert_allclose(found.sum(dim=1), 1)


def test_targets_of_several_labels_equal_loops() -> None:
    rng = np.random.default_rng(0)
    s, y = rng.random((6, CLASSES)), rng.integers(0, 2, (6, CLASSES))
    found, _ = scc.soft_targets(torch.from_numpy(s), torch.from_numpy(y))
    for i in range(6):
        for k in range(CLASSES):
            c = (s[i, k] if y[i, k] else 1 - s[i, k]) ** 2
            assert float(found[i, k]) == pytest.approx(c * y[i, k] + (1 - c) * s[i, k])


def test_a_label_that_step_1_believes_stays_and_one_that_it_doubts_gives_way() -> None:
    s = torch.tensor([[0.99, 0.01], [0.01, 0.99]])
    found, _ = scc.soft_targets(s, torch.tensor([0, 0]))
    assert found[0, 0] > 0.99
    assert found[1, 0] < 0.02
