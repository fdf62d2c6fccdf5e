"""NCR: its loss against loops over neighbours, and that it helps where labels are wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capro.bench.baselines import ncr
from tests.bench.baselines.toy_work import ToyWork, batch


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_cross_entropy_where_two_fifths_are_wrong(seed: int) -> None:
    work = ToyWork(seed=seed)
    alone = work.accuracy(ncr.learn(ToyWork(seed=seed, overrides=("reference.ncr_weight=0",))))
    made = ncr.learn(work)
    assert work.accuracy(made) > max(alone, work.accuracy(work.step1())) + 0.03
    assert made[1] == {"weight": 0.3, "start": 1}


def test_with_several_labels_it_learns() -> None:
    work = ToyWork(several=True)
    assert work.accuracy(ncr.learn(work)) > work.accuracy(work.step1())


def slow(logits: torch.Tensor, v: torch.Tensor, k: int, t: float, several: bool) -> float:
    """The definition, sample by sample."""
    n, total = len(v), 0.0

    def p(i: int) -> list[float]:
        x = [float(value) / t for value in logits[i]]
        if several:
            return [1 / (1 + math.exp(-one)) for one in x]
        return [math.exp(one) / sum(math.exp(other) for other in x) for one in x]

    for i in range(n):
        cosines = {}
        for j in range(n):
            if j != i:
                cosines[j] = float(v[i] @ v[j] / (v[i].norm() * v[j].norm()))
        near = sorted(cosines, key=lambda j: -cosines[j])[:k]
        weights = [max(0.0, cosines[j]) for j in near]
        if sum(weights) == 0:
            continue
        mean = [
            sum(w * p(j)[c] for w, j in zip(weights, near, strict=True)) / sum(weights)
            for c in range(len(p(i)))
        ]
        if several:
            parts = [
                m * math.log(m / q) + (1 - m) * math.log((1 - m) / (1 - q))
                for m, q in zip(mean, p(i), strict=True)
            ]
            total += sum(parts) / len(parts)
        else:
            total += sum(m * math.log(m / q) for m, q in zip(mean, p(i), strict=True))
    return t * t * total / n


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), k=st.integers(1, 12), seed=st.integers(0, 99), several=st.booleans())
def test_the_loss_equals_loops(n: int, k: int, seed: int, several: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    v = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    found = ncr.consistency(logits, v, k=k, temperature=2.0, several=several, count=n)
    assert float(found) == pytest.approx(slow(logits, v, k, 2.0, several), abs=1e-9)
    assert float(found) >= -1e-12  # a divergence


def test_equal_predictions_are_consistent() -> None:
    logits = torch.randn(1, 3).repeat(5, 1)
    found = ncr.consistency(logits, torch.rand(5, 4), k=2, temperature=2.0, several=False, count=5)
    assert float(found) == pytest.approx(0, abs=1e-6)


def test_a_batch_of_one_has_no_neighbours() -> None:
    logits = torch.randn(1, 3, requires_grad=True)
    found = ncr.consistency(logits, torch.rand(1, 4), k=2, temperature=2.0, several=False, count=1)
    found.backward()
    assert float(found.detach()) == 0


def test_neighbours_learn_too() -> None:
    """The gradient goes through their mean: the loss of sample 0 alone moves the logits of sample 1."""
    logits = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]], requires_grad=True)
    v = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [-1.0, 0.0, 0.0]])  # nobody is similar to the third
    ncr.consistency(logits, v, k=1, temperature=2.0, several=False, count=1).backward()
    assert logits.grad is not None
    assert bool(logits.grad[1].any())
    assert not bool(logits.grad[2].any())


def test_consistency_begins_late() -> None:
    work = ToyWork(n=20)
    made = ncr.NeighbourConsistent(
        work.net(), work.task, work.training.labels, work.ranks, weight=0.3, k=5, temperature=2.0, start=2
    )
    assert [set(made.terms(batch(work.v, epoch))) for epoch in (1, 2)] == [{"cls"}, {"cls", "bts"}]
