"""MCPL: its loss against loops, its curriculum, and a problem where labels are missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from capro.bench.baselines import mcpl
from capro.bench.baselines.mcpl import PartialLabels, partial_loss, unknown_labels
from capro.bench.baselines.selection import cross_validated
from capro.models.siamese import Siamese
from tests.bench.baselines.toy_work import CLASSES, ToyWork, f1_of, showing


def pictures(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and membership: any number of classes each, (n, WIDTH) and (n, CLASSES)."""
    rng = np.random.default_rng(seed)
    member = rng.random((n, CLASSES)) < 0.4
    return showing(member, rng), member


class Missing(ToyWork):
    """Half of the true labels are not among the web labels; none is wrong."""

    def __init__(self) -> None:
        super().__init__(n=320, noise=0.0, several=True)
        self.v, self.member = pictures(320, 0)
        named = self.member & (np.random.default_rng(1).random(self.member.shape) < 0.5)
        self.training = replace(self.training, labels=torch.from_numpy(named.astype(np.int64)))

    def beliefs(self) -> np.ndarray:
        """Out of fold, by least squares on the labels as they are."""
        labels = self.training.labels.numpy()

        def learn(seen: np.ndarray, held: np.ndarray) -> np.ndarray:
            weights = np.linalg.lstsq(self.v[seen], labels[seen], rcond=None)[0]
            return (self.v[held] @ weights).astype(np.float32)

        return cross_validated(labels, learn, count=5, seed=0)


def f1(net: Siamese) -> float:
    return f1_of(net, *pictures(400, 9))


def test_it_finds_what_the_labels_miss() -> None:
    work = Missing()
    net, figures = mcpl.learn(work)
    assert net is not None
    complete = work.net()  # the same loss where an absent label is a negative
    nobody = torch.zeros_like(work.training.labels, dtype=torch.bool)
    work.fit(objective(work, complete, nobody), "all known")
    assert f1(net) > f1(complete) + 0.1
    assert f1(net) > f1(work.step1()) + 0.1
    assert 0 < figures["predicted positive"] <= figures["predicted"] <= 1


def objective(work: ToyWork, net: Siamese, unknown: torch.Tensor) -> PartialLabels:
    return PartialLabels(
        net, work.task, work.training.labels, unknown, work.ranks, work.inputs(net), work.training.positions
    )


def test_what_is_unknown_is_mostly_what_is_missing() -> None:
    work = Missing()
    labels = work.training.labels.numpy()
    unknown = unknown_labels(labels, work.beliefs())
    missing = work.member & (labels == 0)
    assert unknown.sum() == labels.sum()
    assert not (unknown & (labels > 0)).any()
    assert (unknown & missing).sum() / missing.sum() > 0.7  # a quarter would be chance


def test_partial_loss_equals_loops() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(5, CLASSES, generator=rng, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 2, (5, CLASSES), generator=rng)
    known = torch.rand(5, CLASSES, generator=rng) < 0.6
    known[3] = False
    slow = 0.0
    for i in range(5):
        p = sum(known[i].tolist()) / CLASSES
        for c in range(CLASSES):
            if known[i, c]:
                sigmoid = float(logits[i, c].detach().sigmoid())
                right = sigmoid if target[i, c] else 1 - sigmoid
                slow -= (-4.45 * p + 5.45) * np.log(right) / CLASSES / 5
    found = partial_loss(logits, target, known, count=5.0)
    assert float(found.detach()) == pytest.approx(slow)
    found.backward()
    assert not logits.grad[~known].any()  # type: ignore[index]
    whole = partial_loss(logits, target, torch.ones_like(known), count=5.0)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, target.double())
    torch.testing.assert_close(whole, plain)  # g(1) = 1


def test_the_curriculum_labels_what_it_is_sure_of() -> None:
    work = Missing()
    net = work.net().eval()
    unknown = torch.zeros_like(work.training.labels, dtype=torch.bool)
    unknown[::2] = True
    made = objective(work, net, unknown)
    made.begin_epoch(0, resumed=False)
    assert torch.equal(made.state()["known"], ~unknown)
    with torch.no_grad():
        net.heads.classifier.weight.mul_(20)
        logits = net.eval()(torch.from_numpy(work.v)).query.p
    made.begin_epoch(1, resumed=False)
    labels, known = made.state()["labels"], made.state()["known"]
    for i in range(0, 320, 7):
        for c in range(CLASSES):
            x = float(logits[i, c])
            if i % 2:
                assert known[i, c]
                assert labels[i, c] == work.training.labels[i, c]
            else:
                assert bool(known[i, c]) == (abs(x) > 2)
                assert bool(labels[i, c]) == (x > 0)
    assert 0 < made.statistics()["predicted"] < 1
