"""MILe and MCPL: turns and partial labels by hand, and problems where they find what labels miss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from capro.bench.baselines import multi_label
from capro.bench.baselines.multi_label import (
    IteratedLearning,
    PartialLabels,
    partial_loss,
    pseudo_labels,
    unknown_labels,
)
from capro.bench.baselines.work import cross_validated
from capro.models.siamese import Siamese
from capro.train.batches import Batch
from tests.bench.baselines.toy_work import CLASSES, ToyWork, f1_of, showing

STEPS = 5  # of an epoch of the toy
RHO = 0.4


def two_classes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that show two classes, (n, WIDTH), and which, (n, CLASSES)."""
    rng = np.random.default_rng(seed)
    shown = np.zeros((n, CLASSES), dtype=bool)
    for row in shown:
        row[rng.permutation(CLASSES)[:2]] = True
    return showing(shown, rng), shown


def found(net: Siamese) -> float:
    """F1 on new pictures with two classes."""
    return f1_of(net, *two_classes(300, 77))


def ambiguous() -> ToyWork:
    """Every picture shows two classes and is labelled with one of them."""
    work = ToyWork(n=240, noise=0.0)
    work.v, shown = two_classes(240, 0)
    rng = np.random.default_rng(2)
    labels = np.array([rng.choice(np.flatnonzero(row)) for row in shown])
    work.training = replace(work.training, labels=torch.from_numpy(labels))
    return work


def test_classes_that_no_label_names_are_found() -> None:
    work = ambiguous()
    net, figures = multi_label.mile(work)
    assert net is not None
    alone = work.net()  # the same without a bottleneck: web labels are handed on
    work.fit(IteratedLearning(work, alone, steps=STEPS, turn=1, rho=1.0), "BCE")
    assert found(net) > found(alone) + 0.04
    assert figures == {"turn": 1}  # a hundredth of 80 steps, one at least


def test_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork()
    assert work.accuracy(multi_label.mile(work)) > work.accuracy(work.step1()) + 0.1


def test_pseudo_labels_equal_loops() -> None:
    logits = torch.randn(6, CLASSES, generator=torch.Generator().manual_seed(0))
    web = torch.eye(CLASSES)[[0, 1, 2, 3, 0, 1]]
    logits[4] = -5.0
    target = pseudo_labels(logits, web, rho=0.4)
    for i in range(6):
        above = [1 / (1 + float((-x).exp())) > 0.4 for x in logits[i]]
        slow = [float(one) for one in above] if any(above) else web[i].tolist()
        assert target[i].tolist() == slow


def batch(work: ToyWork, epoch: int, step: int) -> Batch:
    rows = np.arange(30)
    return Batch(epoch, step, rows, slice(0, 30), torch.from_numpy(work.v[rows]), None, rows)


def slow_loss(logits: torch.Tensor, target: np.ndarray) -> float:
    total = 0.0
    for i in range(len(target)):
        for c in range(CLASSES):
            p = 1 / (1 + np.exp(-float(logits[i, c])))
            total -= (target[i, c] * np.log(p) + (1 - target[i, c]) * np.log(1 - p)) / len(target)
    return total


def test_turns_of_web_labels_and_of_what_the_teacher_was_at_the_turn() -> None:
    """Turns of three steps over epochs of five: 0-2 web, 3-5 the teacher's, 6-8 web, 9-11 the teacher's."""
    work = ToyWork()
    net, labels = work.net().eval(), work.training.labels
    made = IteratedLearning(work, net, steps=STEPS, turn=3, rho=RHO)
    web = torch.eye(CLASSES)[labels[:30]]
    kept = None
    for step in range(12):
        with torch.no_grad():
            net.heads.classifier.weight.add_(0.05 * torch.randn(CLASSES, net.encoder.dim))
            own = net(torch.from_numpy(work.v[:30])).query.p
        if step in (3, 9):
            kept = own  # the teacher stays as it is while the student learns
        teaching = step // 3 % 2 == 0
        target = web if teaching or kept is None else pseudo_labels(kept, web, rho=RHO)
        loss = made.terms(batch(work, *divmod(step, STEPS)))["cls"]
        assert float(loss.detach()) == pytest.approx(slow_loss(own, target.numpy()), rel=1e-4), step
    made.net.zero_grad()
    loss.backward()
    assert net.heads.classifier.weight.grad is not None
    assert all(parameter.grad is None for parameter in made._teacher.parameters())
    assert {id(p) for p in made.parameters()}.isdisjoint(id(p) for p in made._teacher.parameters())


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
    net, figures = multi_label.mcpl(work)
    assert net is not None
    complete = work.net()  # the same loss where an absent label is a negative
    nobody = torch.zeros_like(work.training.labels, dtype=torch.bool)
    work.fit(objective(work, complete, nobody), "all known")
    assert f1(net) > f1(complete) + 0.1
    assert f1(net) > f1(work.step1()) + 0.1
    assert 0 < figures["predicted positive"] <= figures["predicted"] <= 1


def objective(work: ToyWork, net: Siamese, unknown: torch.Tensor) -> PartialLabels:
    return PartialLabels(work, net, unknown)


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
