from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from capro.core.losses import (
    bootstrap_loss,
    bootstrap_loss_multi_label,
    class_offsets,
    classification_loss,
    classification_loss_multi_label,
    collective_target,
    instance_loss,
    positive_weights,
    projection_loss,
    prototype_loss,
    prototype_loss_multi_label,
    reconstruction_loss,
    total,
)

B, C, D, Q = 6, 4, 3, 7
seeds = st.integers(0, 10_000)


class Batch:
    """Random tensors of a batch in double precision; sample 1 is out, class 2 can be absent."""

    def __init__(self, seed: int = 0, b: int = B) -> None:
        gen = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=gen, dtype=torch.float64)

        def sphere(*shape: int) -> Tensor:
            return functional.normalize(normal(*shape), dim=-1)

        self.logits, self.v, self.v_rec = normal(b, C), normal(b, 5), normal(b, 5)
        self.z, self.z_key, self.keys = sphere(b, D), sphere(b, D), sphere(Q, D)
        self.prototypes = sphere(C, D)
        self.q_keys, self.r_keys = normal(Q, C).softmax(1), normal(Q, C).softmax(1)
        self.target = normal(b, C).softmax(1)
        self.y = torch.randint(0, C, (b,), generator=gen)
        self.y[1:2] = -1
        self.z_sub, self.pairs = sphere(b, C, D), sphere(C, 2, D)
        self.labels = torch.randint(0, 2, (b, C), generator=gen)
        self.labels[1:2] = -1
        self.share = torch.rand(b, C, generator=gen, dtype=torch.float64)
        self.pos_weight = 1 + torch.rand(C, generator=gen, dtype=torch.float64)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def cross_entropy(logits: Tensor, c: int) -> float:
    return -math.log(math.exp(logits[c]) / sum(math.exp(x) for x in logits))


def binary_cross_entropy(logit: float, y: float, pos_weight: float = 1.0) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -(pos_weight * y * math.log(p) + (1 - y) * math.log(1 - p))


# ---------------------------------------------------------------------------- slow references


@given(seeds)
def test_classification_equals_loops(seed):
    x = Batch(seed)
    wanted = mean([cross_entropy(x.logits[i], int(x.y[i])) for i in range(B) if x.y[i] >= 0])
    assert float(classification_loss(x.logits, x.y)) == pytest.approx(wanted)


@given(seeds)
def test_soft_targets_equal_loops(seed):
    x = Batch(seed)
    x.target[0] = -1  # out
    wanted = mean(
        [sum(float(x.target[i, c]) * cross_entropy(x.logits[i], c) for c in range(C)) for i in range(1, B)]
    )
    assert float(classification_loss(x.logits, x.target)) == pytest.approx(wanted)


def test_hard_labels_are_one_hot_targets():
    x = Batch()
    rows = torch.where(x.y[:, None] >= 0, functional.one_hot(x.y.clamp(min=0), C), -1)
    torch.testing.assert_close(
        classification_loss(x.logits, rows.double()), classification_loss(x.logits, x.y)
    )


@given(seeds)
def test_projection_equals_loops(seed):
    x = Batch(seed)
    squares = [float(((x.v_rec[i] - x.v[i]) ** 2).sum()) / 5 for i in range(B)]  # out or not
    entropies = [cross_entropy(x.logits[i], int(x.y[i])) for i in range(B) if x.y[i] >= 0]
    found = projection_loss(x.v_rec, x.v, x.logits, x.y)
    assert float(found) == pytest.approx(mean(squares) + mean(entropies))
    assert float(reconstruction_loss(x.v_rec, x.v)) == pytest.approx(mean(squares))


@given(seeds, st.booleans())
def test_prototype_loss_equals_loops(seed, absent):
    x = Batch(seed)
    if absent:
        x.prototypes[2] = 0
    seen = [c for c in range(C) if x.prototypes[c].any()]
    wanted = []
    for i in range(B):
        if int(x.y[i]) in seen:
            scores = {c: math.exp(float(x.z[i] @ x.prototypes[c]) / 0.1) for c in seen}
            wanted.append(-math.log(scores[int(x.y[i])] / sum(scores.values())))
    found = prototype_loss(x.z, x.prototypes, x.y, tau=0.1)
    assert float(found) == pytest.approx(mean(wanted))


@given(seeds)
def test_instance_loss_equals_loops(seed):
    x = Batch(seed)
    wanted = []
    for i in range(B):
        own = math.exp(float(x.z[i] @ x.z_key[i]) / 0.1)
        others = [math.exp(float(x.z[i] @ key) / 0.1) for key in x.keys]
        wanted.append(-math.log(own / (own + sum(others))))
    assert float(instance_loss(x.z, x.z_key, x.keys, tau=0.1)) == pytest.approx(mean(wanted))


@given(seeds)
def test_collective_target_equals_loops(seed):
    x = Batch(seed)
    found = collective_target(x.z, x.keys, x.q_keys, x.r_keys, tau=0.1, alpha=0.3)
    for i in range(B):
        w = [math.exp(float(x.z[i] @ key) / 0.1) for key in x.keys]
        wanted = sum(w[j] / sum(w) * (0.3 * x.q_keys[j] + 0.7 * x.r_keys[j]) for j in range(Q))
        torch.testing.assert_close(found[i], wanted)
    torch.testing.assert_close(found.sum(1), torch.ones(B, dtype=torch.float64))


@given(seeds)
def test_bootstrap_equals_loops(seed):
    x = Batch(seed)
    q = x.logits.softmax(1)
    wanted = []
    for i in range(B):
        pairs = [(float(q[i, c]), float(x.target[i, c])) for c in range(C)]
        if x.y[i] >= 0:
            wanted.append(sum(a * math.log(a / b) for a, b in pairs))
    found = bootstrap_loss(x.logits, x.target, weight=x.y >= 0)
    assert float(found) == pytest.approx(mean(wanted), rel=1e-5)


@given(seeds)
def test_multi_label_classification_equals_loops(seed):
    x = Batch(seed)
    x.labels[0, 2] = -1  # one pair leaves
    wanted = []
    for i in range(B):
        pairs = [
            binary_cross_entropy(float(x.logits[i, c]), float(x.labels[i, c]), float(x.pos_weight[c]))
            for c in range(C)
            if x.labels[i, c] >= 0
        ]
        wanted += [mean(pairs)] if pairs else []
    found = classification_loss_multi_label(x.logits, x.labels, pos_weight=x.pos_weight)
    assert float(found) == pytest.approx(mean(wanted))


@given(seeds, st.booleans())
def test_multi_label_prototype_loss_equals_loops(seed, absent):
    x = Batch(seed)
    if absent:
        x.pairs[2, 1] = 0
    wanted = []
    for i in range(B):
        if i == 1:
            continue
        terms = []
        for c in range(C):
            if not (absent and c == 2):
                two_way = (x.pairs[c] @ x.z_sub[i, c] / 0.1).softmax(0)
                terms.append(-math.log(float(two_way[int(x.labels[i, c])])))
        wanted.append(mean(terms))
    found = prototype_loss_multi_label(x.z_sub, x.pairs, x.labels, tau=0.1)
    assert float(found) == pytest.approx(mean(wanted))


@given(seeds)
def test_multi_label_bootstrap_equals_loops(seed):
    x = Batch(seed)
    q = x.logits.sigmoid()
    wanted = []
    for i in range(B):
        terms = []
        for c in range(C):
            a, b = float(q[i, c]), min(max(float(x.share[i, c]), 1e-6), 1 - 1e-6)
            terms.append(a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b)))
        wanted.append(mean(terms))
    assert float(bootstrap_loss_multi_label(x.logits, x.share)) == pytest.approx(mean(wanted))


# ---------------------------------------------------------------------------- every term


def all_terms(x: Batch, part: Tensor, y: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Every term; `part`, `y` and `labels` say who is in."""
    return {
        "cls": classification_loss(x.logits, y),
        "soft": classification_loss(x.logits, x.target, weight=part),
        "prj": projection_loss(x.v_rec, x.v, x.logits, y),
        "pro": prototype_loss(x.z, x.prototypes, y, tau=0.1),
        "ins": instance_loss(x.z, x.z_key, x.keys, tau=0.1),
        "bts": bootstrap_loss(x.logits, x.target, weight=part),
        "bce": classification_loss_multi_label(x.logits, labels, pos_weight=x.pos_weight),
        "pro2": prototype_loss_multi_label(x.z_sub, x.pairs, labels, tau=0.1),
        "bts2": bootstrap_loss_multi_label(x.logits, x.share, weight=part),
    }


NAMES = ["logits", "v", "v_rec", "z", "z_key", "z_sub", "target", "share"]


@given(seeds, st.permutations(range(B)))
def test_losses_do_not_depend_on_the_order_of_the_batch(seed, order):
    x = Batch(seed)
    before = all_terms(x, x.y >= 0, x.y, x.labels)
    for name in [*NAMES, "y", "labels"]:
        setattr(x, name, getattr(x, name)[list(order)])
    after = all_terms(x, x.y >= 0, x.y, x.labels)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, msg=name)


@pytest.mark.parametrize("b", [0, 1, B])
def test_a_batch_without_a_clean_sample_gives_zero_and_finite_gradients(b):
    x = Batch(b=b)
    leaves = ("logits", "z", "z_sub")
    for name in leaves:
        getattr(x, name).requires_grad_()
    x.v_rec, x.prototypes[2] = x.v.clone(), 0  # L_ins needs no label: it never leaves
    nobody = torch.zeros(b, dtype=torch.bool)
    terms = all_terms(x, nobody, torch.full((b,), -1), torch.full((b, C), -1))
    del terms["ins"]
    for name, term in terms.items():
        assert term.item() == 0, name
        assert term.requires_grad, name
    sum(terms.values(), torch.zeros(())).backward()
    for name in leaves:
        assert torch.equal(getattr(x, name).grad, torch.zeros_like(getattr(x, name))), name


def test_samples_of_an_absent_class_leave_with_finite_gradients():
    x = Batch()
    x.z.requires_grad_()
    x.prototypes[:2] = 0
    y = torch.tensor([0, 1, 2, 3, 2, 0])
    prototype_loss(x.z, x.prototypes, y, tau=0.1).backward()
    assert x.z.grad is not None
    assert x.z.grad.isfinite().all()
    assert not x.z.grad[[0, 1, 5]].any()
    assert x.z.grad[2:5].any(dim=1).all()
    x.prototypes[:] = 0
    assert prototype_loss(x.z, x.prototypes, y, tau=0.1).item() == 0


def test_targets_get_no_gradient():
    x = Batch()
    for name in [*NAMES, "keys", "q_keys", "r_keys"]:
        getattr(x, name).requires_grad_()
    b = collective_target(x.z, x.keys, x.q_keys, x.r_keys, tau=0.1, alpha=0.5)
    assert not b.requires_grad
    loss = projection_loss(x.v_rec, x.v, x.logits, x.y)
    loss = loss + instance_loss(x.z, x.z_key, x.keys, tau=0.1)
    loss = loss + bootstrap_loss(x.logits, x.target) + bootstrap_loss_multi_label(x.logits, x.share)
    loss.backward()
    for name in ["v", "z_key", "keys", "target", "share"]:
        assert getattr(x, name).grad is None, name
    for name in ["v_rec", "z", "logits"]:
        assert getattr(x, name).grad.any(), name


@pytest.mark.parametrize("scale", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(scale, dtype):
    x = Batch()
    for name, value in vars(x).items():
        if value.is_floating_point():
            setattr(x, name, value.to(dtype))
    x.logits = (torch.eye(B, C, dtype=dtype) * scale).requires_grad_()
    x.z = x.z * 1e3  # / tau: 1e4
    x.z_sub = (x.z_sub * 1e3).requires_grad_()
    x.target = torch.eye(C, dtype=dtype)[torch.zeros(B).long()]  # no mass on most classes
    x.share = torch.zeros(B, C, dtype=dtype)
    x.share[:, 0] = 1
    x.z.requires_grad_()
    for name, term in all_terms(x, x.y >= 0, x.y, x.labels).items():
        assert term.isfinite(), name
        term.backward()
    assert x.logits.grad is not None
    assert x.logits.grad.isfinite().all()
    assert x.z.grad is not None
    assert x.z.grad.isfinite().all()


def test_gradients_equal_finite_differences():
    x = Batch()
    x.prototypes[2] = 0
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda t: classification_loss(t, x.y),
        lambda t: bootstrap_loss(t, x.target),
        lambda t: bootstrap_loss_multi_label(t, x.share),
        lambda t: classification_loss_multi_label(t, x.labels, pos_weight=x.pos_weight),
    ]
    for function in functions:
        assert torch.autograd.gradcheck(function, x.logits.requires_grad_())
    x.z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: prototype_loss(z, x.prototypes, x.y, tau=0.5), x.z)
    assert torch.autograd.gradcheck(lambda z: instance_loss(z, x.z_key, x.keys, tau=0.5), x.z)


def test_weights_are_shares_of_the_mean():
    logits, y = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])
    first, second = math.log(2), math.log(1 + math.exp(-1))
    found = classification_loss(logits, y, weight=torch.tensor([1.0, 3.0]))
    assert float(found) == pytest.approx((first + 3 * second) / 4)


@given(seeds, st.integers(0, B))
def test_the_mean_of_two_ranks_is_the_global_loss(seed, cut):
    x = Batch(seed)
    whole = classification_loss(x.logits, x.y)
    count = (x.y >= 0).sum() / 2  # per rank
    ranks = [
        classification_loss(x.logits[part], x.y[part], count=count) for part in (slice(0, cut), slice(cut, B))
    ]
    torch.testing.assert_close((ranks[0] + ranks[1]) / 2, whole)


# ---------------------------------------------------------------------------- KL, total, weights


@given(seeds)
def test_kl_is_zero_where_q_equals_b_and_positive_elsewhere(seed):
    x = Batch(seed)
    one = x.logits[:1]
    assert float(bootstrap_loss(one, one.softmax(1))) == pytest.approx(0, abs=1e-7)
    assert float(bootstrap_loss_multi_label(one, one.sigmoid())) == pytest.approx(0, abs=1e-7)
    assert float(bootstrap_loss(one, x.target[:1])) > 1e-6
    assert float(bootstrap_loss_multi_label(one, x.share[:1])) > 1e-6


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=5), st.data())
def test_kl_is_never_negative(logits, data):
    size = len(logits)
    masses = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any))
    b = torch.tensor([masses], dtype=torch.float64)
    row = torch.tensor([logits], dtype=torch.float64)
    assert float(bootstrap_loss(row, b / b.sum())) >= -1e-12
    # At the floor itself: the bounded b may differ from q by 1e-6.
    assert float(bootstrap_loss_multi_label(row, (b > 1).double())) >= -1e-12


def test_kl_direction_is_q_over_b():
    q, b = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    wanted = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert float(bootstrap_loss(q.log(), b)) == pytest.approx(wanted, rel=1e-5)
    found = bootstrap_loss_multi_label(torch.tensor([[math.log(9)]]), torch.tensor([[0.5]]))
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_total_by_hand():
    terms = {name: torch.tensor(float(i + 1)) for i, name in enumerate(["cls", "bts", "prj"])}
    weights = {"bts": 0.1, "prj": 2.0, "pro": 5.0}
    assert float(total(terms, weights)) == pytest.approx(0.9 * 1 + 0.1 * 2 + 2 * 3)
    step_1 = {"cls": terms["cls"], "prj": terms["prj"]}
    assert float(total(step_1, weights)) == pytest.approx(1 + 2 * 3)


def test_positive_weights_by_hand():
    found = positive_weights(torch.tensor([10, 50, 90, 0, 100]), 100)
    assert found.tolist() == pytest.approx([3.0, 1.0, 1 / 3, 10.0, 0.1])


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8).filter(any), st.floats(0, 1))
def test_offsets_of_classes_equal_a_loop(counts, balance):
    slow = [balance * math.log(count / sum(counts)) if count else 0.0 for count in counts]
    found = class_offsets(torch.tensor(counts), balance=balance)
    assert torch.allclose(found, torch.tensor(slow), atol=1e-5)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.floats(0, 1))
def test_offsets_take_the_sizes_of_classes_out_of_what_is_learnt(counts, balance):
    """Without features, log share * (1 - balance) is the best that is left to learn."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    share = torch.tensor(counts) / len(y)
    learnt = (share.log() * (1 - balance)).requires_grad_()
    logits = (learnt + class_offsets(torch.tensor(counts), balance=balance)).expand(len(y), -1)
    classification_loss(logits, y).backward()
    assert learnt.grad is not None
    assert learnt.grad.abs().max() < 1e-6
