from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from capro.core.prototypes import (
    class_sums,
    class_sums_multi_label,
    polish,
    polish_multi_label,
    present,
    similarity,
    similarity_multi_label,
    unit,
)

C, D = 4, 3


def sphere(*shape: int, seed: int) -> Tensor:
    """Random unit vectors in double precision."""
    gen = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(*shape, generator=gen, dtype=torch.float64), dim=-1)


def draw(high: int, *shape: int, seed: int, low: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


seeds = st.integers(0, 10_000)
labels = st.lists(st.integers(-1, C - 1), max_size=12).map(lambda y: torch.tensor(y).long())
momenta = st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0])


def slow_polish(prototypes: Tensor, z: Tensor, y: Tensor, momentum: float) -> Tensor:
    """One sample after another, normalised once at the end."""
    result = prototypes.clone()
    for c in range(len(prototypes)):
        members = [i for i in range(len(y)) if y[i] == c]
        if not members:
            continue
        if not prototypes[c].any():
            result[c] = z[members].mean(0)
        for i in members if prototypes[c].any() else []:
            result[c] = momentum * result[c] + (1 - momentum) * z[i]
        result[c] /= result[c].norm()
    return result


def test_start_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [9.0, 9.0]])
    found = unit(class_sums(z, torch.tensor([0, 0, 2, -1]), n_classes=3))
    half = math.sqrt(0.5)
    torch.testing.assert_close(found, torch.tensor([[half, half], [0.0, 0.0], [0.6, 0.8]]))


@given(labels, seeds)
def test_start_is_the_normalised_mean(y, seed):
    z = sphere(len(y), D, seed=seed)
    found = unit(class_sums(z, y, n_classes=C))
    for c in range(C):
        rows = z[y == c]
        mean = rows.mean(0) if len(rows) else torch.zeros(D, dtype=z.dtype)
        torch.testing.assert_close(found[c], mean / mean.norm() if len(rows) else mean)


def test_sums_of_blocks_give_the_same_start():
    z, y = sphere(20, D, seed=0), draw(C, 20, seed=1)
    blocks = class_sums(z[:7], y[:7], n_classes=C) + class_sums(z[7:], y[7:], n_classes=C)
    torch.testing.assert_close(unit(blocks), unit(class_sums(z, y, n_classes=C)))


def test_polish_by_hand():
    # m^2 z^c + (1-m) (m z_1 + z_2) with m = 1/2: (1/4, 0) + (0, 1/4) + (0, 1/2) = (1/4, 3/4)
    z = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    found = polish(torch.eye(2), z, torch.tensor([0, 0]), momentum=0.5)
    torch.testing.assert_close(found[0], torch.tensor([0.25, 0.75]) / math.sqrt(0.625))
    torch.testing.assert_close(found[1], torch.tensor([0.0, 1.0]))


@given(labels, seeds, momenta, st.sets(st.integers(0, C - 1)))
def test_closed_form_equals_one_by_one(y, seed, momentum, absent):
    prototypes, z = sphere(C, D, seed=seed), sphere(len(y), D, seed=seed + 1)
    prototypes[list(absent)] = 0
    before = prototypes.clone()
    found = polish(prototypes, z, y, momentum=momentum)
    torch.testing.assert_close(found, slow_polish(prototypes, z, y, momentum))
    assert torch.equal(prototypes, before)


@given(labels, seeds, momenta)
def test_prototypes_stay_unit_or_zero(y, seed, momentum):
    prototypes = sphere(C, D, seed=seed).float()
    prototypes[0] = 0
    for step in range(5):
        z = sphere(len(y), D, seed=seed + step).float()
        prototypes = polish(prototypes, z, y, momentum=momentum)
    norms = prototypes.norm(dim=1)
    ones = torch.ones(C - 1)
    torch.testing.assert_close(norms[1:], ones)
    assert norms[0] == (0 if 0 not in y else pytest.approx(1))


def test_polish_is_quiet_where_no_sample_is():
    prototypes = sphere(C, D, seed=0).float()
    none = torch.zeros(0, dtype=torch.long)
    assert torch.equal(polish(prototypes, torch.zeros(0, D), none, momentum=0.9), prototypes)
    out = torch.full((2,), -1)
    assert torch.equal(polish(prototypes, torch.ones(2, D), out, momentum=0.9), prototypes)


def test_a_prototype_that_cancels_out_stays():
    prototypes = torch.eye(2)
    found = polish(prototypes, -prototypes[:1], torch.tensor([0]), momentum=0.5)
    assert torch.equal(found, prototypes)


def test_polish_keeps_no_graph_and_takes_half_precision():
    z = sphere(2, D, seed=0).bfloat16().requires_grad_()
    found = polish(sphere(C, D, seed=1).float(), z, torch.tensor([0, 1]), momentum=0.9)
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_similarity_by_hand():
    found = similarity(torch.tensor([[1.0, 0.0]]), torch.eye(2), tau=0.5)
    high = math.exp(2) / (math.exp(2) + 1)
    torch.testing.assert_close(found, torch.tensor([[high, 1 - high]]))


@given(seeds, st.sets(st.integers(0, C - 1)))
def test_similarity_gives_absent_classes_nothing(seed, absent):
    z, prototypes = sphere(5, D, seed=seed), sphere(C, D, seed=seed + 1)
    prototypes[list(absent)] = 0
    found = similarity(z, prototypes, tau=0.1)
    for i in range(5):
        seen = [c for c in range(C) if c not in absent]
        mass = [math.exp(float(z[i] @ prototypes[c]) / 0.1) for c in seen]
        for c in range(C):
            wanted = mass[seen.index(c)] / sum(mass) if c in seen else 0.0 if seen else 1 / C
            assert float(found[i, c]) == pytest.approx(wanted)


def test_similarity_has_no_nan_in_its_gradient():
    z = sphere(5, D, seed=0).requires_grad_()
    prototypes = sphere(C, D, seed=1)
    prototypes[1] = 0
    similarity(z, prototypes, tau=1e-4).square().sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


# ---------------------------------------------------------------------------- multi-label


def slow_start_multi_label(z: Tensor, y: Tensor, anchored: Tensor) -> Tensor:
    found = torch.zeros(z.shape[1], 2, z.shape[2], dtype=z.dtype)
    for c in range(z.shape[1]):
        for i in range(len(z)):
            if anchored[i, c]:
                found[c, 1] += z[i, c]
            elif anchored[i].any() and not y[i, c]:
                found[c, 0] += z[i, c]
    return functional.normalize(found, dim=-1)


def test_start_multi_label_takes_negatives_from_anchors_without_the_class():
    z = torch.eye(4)[:, None, :].expand(4, 2, 4)  # sample i is axis i in both subspaces
    y = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]])
    anchored = torch.tensor([[1, 0], [0, 1], [0, 1], [0, 0]]).bool()
    found = unit(class_sums_multi_label(z, y, anchored))
    half = math.sqrt(0.5)
    assert torch.equal(found[0, 1], torch.tensor([1.0, 0, 0, 0]))
    assert torch.equal(found[0, 0], torch.tensor([0, 0, 1.0, 0]))  # sample 1 carries class 0
    torch.testing.assert_close(found[1, 1], torch.tensor([0, half, half, 0]))
    assert torch.equal(found[1, 0], torch.tensor([1.0, 0, 0, 0]))  # sample 3 is no anchor


@given(seeds, st.integers(0, 8))
def test_start_multi_label_equals_loops(seed, n):
    z, y = sphere(n, C, D, seed=seed), draw(2, n, C, seed=seed)
    anchored = (y == 1) & (draw(2, n, C, seed=seed + 1) == 1)
    wanted = slow_start_multi_label(z, y, anchored)
    torch.testing.assert_close(unit(class_sums_multi_label(z, y, anchored)), wanted)
    blocks = class_sums_multi_label(z[:2], y[:2], anchored[:2])
    blocks += class_sums_multi_label(z[2:], y[2:], anchored[2:])
    torch.testing.assert_close(unit(blocks), wanted)


@given(seeds, st.integers(0, 8), momenta)
def test_polish_multi_label_is_polish_in_each_subspace(seed, b, momentum):
    prototypes, z = sphere(C, 2, D, seed=seed), sphere(b, C, D, seed=seed + 1)
    prototypes[0, 1] = 0
    y = draw(2, b, C, seed=seed, low=-1)
    found = polish_multi_label(prototypes, z, y, momentum=momentum)
    for c in range(C):
        wanted = slow_polish(prototypes[c], z[:, c], y[:, c], momentum)
        torch.testing.assert_close(found[c], wanted)
    assert present(found)[1:].all()


def test_similarity_multi_label_is_the_two_way_softmax():
    z, prototypes = sphere(5, C, D, seed=0), sphere(C, 2, D, seed=1)
    prototypes[2, 0] = 0
    found = similarity_multi_label(z, prototypes, tau=0.2)
    for i in range(5):
        for c in range(C):
            pair = (prototypes[c] @ z[i, c] / 0.2).softmax(0)
            assert float(found[i, c]) == pytest.approx(0.5 if c == 2 else float(pair[1]))
