"""MILe: pseudo-labels and turns by hand, and problems where handing on several labels helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from capro.bench.baselines import mile
from capro.bench.baselines.mile import IteratedLearning, pseudo_labels
from capro.nets.siamese import Siamese
from capro.train.batches import Batch
from tests.bench.baselines.toy_work import CLASSES, ToyWork, f1_of, showing

STEPS = 5  # of an epoch of the toy


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
    work.fit(
        IteratedLearning(alone, work.task, work.training.labels, work.ranks, steps=STEPS, rho=1.0), "BCE"
    )
    assert found(net) > found(alone) + 0.1
    assert figures == {"generations": 16, "rho": 0.5}  # twice chance, with four classes


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


def batch(work: ToyWork, step: int) -> Batch:
    rows = np.arange(30)
    return Batch(1, step, rows, slice(0, 30), torch.from_numpy(work.v[rows]), None, rows)


def test_the_teacher_learns_from_web_labels_then_the_student_from_the_teacher() -> None:
    work = ToyWork()
    net, labels = work.net(), work.training.labels
    made = IteratedLearning(net, work.task, labels, work.ranks, steps=STEPS, rho=0.4)
    made.begin_epoch(1, resumed=False)
    teacher = made._teacher
    with torch.no_grad():
        teacher.heads.classifier.weight.add_(0.3)
        logits = teacher.eval()(torch.from_numpy(work.v[:30])).query.p
        own = net.eval()(torch.from_numpy(work.v[:30])).query.p
    web = np.eye(CLASSES)[labels[:30].numpy()]
    for step, x, target, learner in (
        (1, logits, web, teacher),
        (2, own, pseudo_labels(logits, torch.from_numpy(web), rho=0.4).numpy(), net),
    ):
        loss = made.terms(batch(work, step))["cls"]
        slow = 0.0
        for i in range(30):
            for c in range(CLASSES):
                p = 1 / (1 + np.exp(-float(x[i, c])))
                slow -= (target[i, c] * np.log(p) + (1 - target[i, c]) * np.log(1 - p)) / 30
        assert float(loss.detach()) == pytest.approx(slow, rel=1e-4)
        made.net.zero_grad()
        teacher.zero_grad()
        loss.backward()
        for one in (net, teacher):
            grad = one.heads.classifier.weight.grad
            assert (grad is not None and bool(grad.any())) == (one is learner)
    made.begin_epoch(2, resumed=False)  # the next teacher is the student
    assert torch.equal(teacher.heads.classifier.weight, net.heads.classifier.weight)
