from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from capro.models.heads import Auxiliary, Heads, Projector, Reconstructor, Subspaces, unit_norm


def test_projector_is_the_two_layers_of_the_paper() -> None:
    projector = Projector(2, 2)
    with torch.no_grad():
        projector.hidden.weight.copy_(torch.eye(2))
        projector.hidden.bias.zero_()
        projector.out.weight.copy_(torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
        projector.out.bias.zero_()
    z = projector(torch.tensor([[2.0, -5.0]]))  # ReLU drops the -5: (6, 8) / 10
    torch.testing.assert_close(z, torch.tensor([[0.6, 0.8]]))


def test_shapes_and_layers() -> None:
    projector, reconstructor = Projector(8, 4), Reconstructor(8, 4)
    assert [tuple(p.shape) for p in projector.parameters()] == [(8, 8), (8,), (4, 8), (4,)]
    assert [tuple(p.shape) for p in reconstructor.parameters()] == [(8, 4), (8,), (8, 8), (8,)]
    assert tuple(Heads(8, 4, 3, tau=1).classifier.weight.shape) == (3, 8)
    z = unit_norm(torch.randn(5, 4))
    hidden = F.linear(z, reconstructor.hidden.weight, reconstructor.hidden.bias).clamp(min=0)
    expected = F.linear(hidden, reconstructor.out.weight, reconstructor.out.bias)
    torch.testing.assert_close(reconstructor(z), expected)


@given(st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_embeddings_have_unit_norm(seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    out = Heads(6, 3, 4, tau=0.1, multi_label=True)(torch.randn(5, 6) * scale)
    torch.testing.assert_close(out.z.norm(dim=-1), torch.ones(5))
    assert out.z_c is not None
    torch.testing.assert_close(out.z_c.norm(dim=-1), torch.ones(5, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_zero_vector_stays_finite_also_in_half_precision(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    y = unit_norm(x)
    assert torch.equal(y, torch.zeros_like(y))  # 0 / 0 with an epsilon that half precision cannot hold
    if dtype != torch.float16:  # a slope of 1 / epsilon
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_auxiliary_divides_by_the_temperature() -> None:
    torch.manual_seed(0)
    head = Auxiliary(4, 3, tau=0.1)
    z = unit_norm(torch.randn(5, 4))
    torch.testing.assert_close(head(z), 10 * (z @ head.weight.T + head.bias))


def test_temperature_lets_q_be_confident() -> None:
    # the reason that docs/paper.md gives: unit_norm z, weights of ordinary size
    z = torch.tensor([[1.0, 0.0]])
    sharp, flat = Auxiliary(2, 2, tau=0.1), Auxiliary(2, 2, tau=1.0)
    for head in (sharp, flat):
        with torch.no_grad():
            head.weight.copy_(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
            head.bias.zero_()
    assert sharp(z).softmax(1).max() > 0.999
    assert flat(z).softmax(1).max() < 0.75


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**31))
def test_subspaces_equal_a_loop_over_classes(b: int, d: int, c: int, seed: int) -> None:
    torch.manual_seed(seed)
    subspaces = Subspaces(d, c)
    z = unit_norm(torch.randn(b, d))
    slow = torch.empty(b, c, d)
    for i in range(b):
        for k in range(c):
            mapped = subspaces.weight[k] @ z[i] + subspaces.bias[k]
            slow[i, k] = mapped / max(float(mapped.detach().norm()), 1e-6)
    torch.testing.assert_close(subspaces(z), slow)


def test_single_label_has_no_subspaces_and_no_idle_weight() -> None:
    heads = Heads(6, 3, 4, tau=0.1)
    out = heads(torch.randn(5, 6))
    (out.p.sum() + out.q.sum() + out.v_rec.sum()).backward()
    assert out.z_c is None
    assert all(p.grad is not None for p in heads.parameters())
