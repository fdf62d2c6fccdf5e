"""MILe: pseudo-labels and turns by hand, and problems where handing on several labels helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from capro.bench.baselines import mile
from capro.bench.baselines.mile import IteratedLearning, pseudo_labels
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
    net, figures = mile.learn(work)
    assert net is not None
    alone = work.net()  # the same without a bottleneck: web labels are handed on
    labels = work.training.labels
    work.fit(IteratedLearning(alone, work.task, labels, work.ranks, steps=STEPS, turn=1, rho=1.0), "BCE")
    assert found(net) > found(alone) + 0.04
    assert figures == {"turn": 1}  # a hundredth of 80 steps, one at least


def test_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork()
    assert work.accuracy(mile.learn(work)) > work.accuracy(work.step1()) + 0.1


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
    made = IteratedLearning(net, work.task, labels, work.ranks, steps=STEPS, turn=3, rho=RHO)
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
