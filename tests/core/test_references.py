from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from capro.config import ReferenceSettings
from capro.core.losses import (
    bootstrap_loss,
    bootstrap_loss_multi_label,
    classification_loss,
    classification_loss_multi_label,
    collective_target,
    total,
)
from capro.core.references import PROVIDERS, Mixture, Outputs, provider
from capro.errors import RunError

B, C, D, Q = 6, 4, 3, 7
seeds = st.integers(0, 10_000)
every = pytest.mark.parametrize("name", PROVIDERS)
both = pytest.mark.parametrize("multi", [False, True], ids=["single", "multi"])


def outputs(seed: int = 0, *, multi: bool = False, b: int = B, **changes: Tensor) -> Outputs:
    """A batch in double precision whose sample 1 is out."""
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    labels = torch.randint(0, 2, (b, C), generator=gen) if multi else torch.arange(b) % C
    labels[1:2] = -1
    keys = functional.normalize(normal(Q, D), dim=1)
    out = Outputs(
        p_logits=normal(b, C),
        q_logits=normal(b, C),
        v=normal(b, 5),
        z=functional.normalize(normal(b, D), dim=1),
        labels=labels,
        keys=keys,
        q_keys=normal(Q, C).softmax(1),
        r_keys=normal(Q, C).softmax(1),
        mixture=Mixture(torch.randperm(b, generator=gen), 0.7),
        p_mixed_logits=normal(b, C),
        pos_weight=1 + torch.rand(C, generator=gen, dtype=torch.float64) if multi else None,
    )
    return dataclasses.replace(out, **changes)


def rows(out: Outputs) -> Tensor:
    return out.labels if out.multi_label else functional.one_hot(out.labels.clamp(min=0), C)


def slow_cross_entropy(out: Outputs, logits: Tensor, target: Tensor, weight: list[float]) -> float:
    """Weighted mean of the cross-entropy, pair by pair."""
    total = 0.0
    for i in range(len(logits)):
        if weight[i] == 0:
            continue
        term = 0.0
        for c in range(C):
            t = float(target[i, c])
            if out.pos_weight is None:
                term -= t * float(logits[i].log_softmax(0)[c])
            else:
                p = float(logits[i, c].sigmoid())
                positive = float(out.pos_weight[c]) * t * math.log(p)
                term -= (positive + (1 - t) * math.log(1 - p)) / C
        total += weight[i] * term
    return total / sum(weight)


CLEAN = [1.0, 0.0] + [1.0] * (B - 2)


# ---------------------------------------------------------------------------- each provider


def test_the_settings_of_each_provider_are_its_fields():
    chosen = ReferenceSettings()
    for name, kind in PROVIDERS.items():
        own = {field.name for field in dataclasses.fields(kind)}
        assert own & set(type(chosen).model_fields) == set(chosen.of(name))


@both
def test_none_leaves_the_total_at_the_classification_loss(multi):
    out = outputs(multi=multi)
    found = provider("none").loss(out).loss
    if multi:
        wanted = classification_loss_multi_label(out.p_logits, out.labels, pos_weight=out.pos_weight)
    else:
        wanted = classification_loss(out.p_logits, out.labels)
    torch.testing.assert_close(found, wanted)


@both
def test_smoothing_equals_loops(multi):
    out = outputs(multi=multi)
    target, loss, _ = provider("smoothing", smoothing=0.2).loss(out)
    wanted = 0.8 * rows(out) + 0.2 * (0.5 if multi else 1 / C)
    for i in (0, 2, 3, 4, 5):
        torch.testing.assert_close(target[i], wanted[i].double())
    assert float(loss) == pytest.approx(slow_cross_entropy(out, out.p_logits, wanted, CLEAN))


@both
@pytest.mark.parametrize("hard", [False, True])
def test_bootstrap_equals_loops(multi, hard):
    out = outputs(multi=multi)
    target, loss, _ = provider("bootstrap", bootstrap_beta=0.6, bootstrap_hard=hard).loss(out)
    wanted = torch.zeros(B, C, dtype=torch.float64)
    for i in range(B):
        p = out.p_logits[i].sigmoid() if multi else out.p_logits[i].softmax(0)
        if hard:
            p = (p > 0.5).double() if multi else (p == p.max()).double()
        wanted[i] = 0.6 * rows(out)[i].clamp(min=0) + 0.4 * p
    torch.testing.assert_close(target, wanted)
    assert float(loss) == pytest.approx(slow_cross_entropy(out, out.p_logits, wanted, CLEAN))


@both
def test_soft_bootstrap_is_more_than_a_scaled_cross_entropy(multi):
    """Beliefs in the target carry gradient: the entropy is minimised as well."""
    logits = outputs(multi=multi).p_logits.requires_grad_()
    out = outputs(multi=multi, p_logits=logits)
    scheme = provider("bootstrap", bootstrap_beta=0.0)
    (gradient,) = torch.autograd.grad(scheme.loss(out).loss, logits)
    assert gradient.abs().max() > 1e-3
    assert torch.autograd.gradcheck(lambda x: scheme.loss(outputs(multi=multi, p_logits=x)).loss, logits)
    assert not scheme.loss(out).target.requires_grad


@both
def test_scc_is_confidence_times_label_plus_rest_times_self_label(multi):
    out = outputs(multi=multi)
    logits = out.q_logits
    target, loss, _ = provider("scc").loss(out)
    wanted = torch.zeros(B, C, dtype=torch.float64)
    for i in range(B):
        if not CLEAN[i]:
            continue
        s = logits[i].sigmoid() if multi else logits[i].softmax(0)
        for c in range(C):
            label = float(rows(out)[i, c])
            belief = float(s[c])
            confidence = belief if label else 1 - belief
            if not multi:
                confidence = float(s[out.labels[i]])
            wanted[i, c] = confidence * label + (1 - confidence) * belief
        torch.testing.assert_close(target[i], wanted[i])
    assert float(loss) == pytest.approx(slow_cross_entropy(out, out.p_logits, wanted, CLEAN))


@both
@pytest.mark.parametrize("k", [1, 2, 50])
def test_ncr_equals_loops(multi, k):
    out = outputs(multi=multi)
    target, loss, _ = provider("ncr", neighbours=k, ncr_temperature=1.5).loss(out)
    logits = out.p_logits / 1.5
    beliefs = logits.sigmoid() if multi else logits.softmax(1)
    terms = []
    for i in range(B):
        cosine = {
            j: float(out.v[i] @ out.v[j] / out.v[i].norm() / out.v[j].norm()) for j in range(B) if j != i
        }
        nearest = sorted(cosine, key=lambda j, cosine=cosine: -cosine[j])[:k]
        w = {j: max(cosine[j], 0.0) for j in nearest}
        if sum(w.values()) == 0:
            continue
        mean = sum(w[j] * beliefs[j] for j in nearest) / sum(w.values())
        torch.testing.assert_close(target[i], mean)
        if CLEAN[i]:
            kl = bootstrap_loss_multi_label if multi else bootstrap_loss
            terms.append(float(kl(logits[i : i + 1], mean[None])))
    assert float(loss) == pytest.approx(sum(terms) / len(terms))


def test_ncr_without_a_similar_sample_is_zero():
    alone = outputs(b=1)
    assert float(provider("ncr").loss(alone).loss) == 0
    opposite = torch.tensor([[1.0, 0], [-1.0, 0]], dtype=torch.float64)
    out = outputs(b=2, v=opposite, labels=torch.tensor([0, 1]))
    assert float(provider("ncr").loss(out).loss) == 0


@both
def test_cb_is_equations_8_and_9(multi):
    out = outputs(multi=multi)
    target, loss, _ = provider("cb", tau=0.3, alpha=0.2).loss(out)
    assert out.keys is not None
    assert out.q_keys is not None
    assert out.r_keys is not None
    wanted = collective_target(out.z, out.keys, out.q_keys, out.r_keys, tau=0.3, alpha=0.2)
    torch.testing.assert_close(target, wanted)
    kl = bootstrap_loss_multi_label if multi else bootstrap_loss
    weight = torch.tensor(CLEAN).double()
    torch.testing.assert_close(loss, kl(out.q_logits, wanted, weight=weight))


@both
def test_cb_can_be_told_to_reach_the_classifier_too(multi):
    out = outputs(multi=multi)
    alone, both_ = (provider("cb", to_classifier=told).loss(out) for told in (False, True))
    kl = bootstrap_loss_multi_label if multi else bootstrap_loss
    more = kl(out.p_logits, alone.target, weight=torch.tensor(CLEAN).double())
    torch.testing.assert_close(both_.loss, alone.loss + more)
    torch.testing.assert_close(both_.target, alone.target)


@both
@pytest.mark.parametrize("name", ["scc", "ncr", "cb"])
def test_gradients_flow_through_the_prediction_but_not_the_target(name, multi):
    """The gradient is that of the same loss with the target as a constant."""
    out = outputs(multi=multi)
    p, q = out.p_logits.clone().requires_grad_(), out.q_logits.clone().requires_grad_()
    z, v = out.z.clone().requires_grad_(), out.v.clone().requires_grad_()
    live = dataclasses.replace(out, p_logits=p, q_logits=q, z=z, v=v)
    target, loss, _ = provider(name, ncr_temperature=1.0).loss(live)
    assert not target.requires_grad
    loss.backward()
    assert z.grad is None
    assert v.grad is None
    used, unused = (q, p) if name == "cb" else (p, q)
    assert unused.grad is None
    constant = used.detach().clone().requires_grad_()
    clean = out.clean & (target > 0).any(dim=1)
    measure = out.cross_entropy if name == "scc" else out.divergence
    measure(constant, target, clean, None).backward()
    torch.testing.assert_close(used.grad, constant.grad)


# ---------------------------------------------------------------------------- mix-up


@both
def test_mixup_equals_loops(multi):
    out = outputs(multi=multi)
    mixture = out.mixture
    assert mixture is not None
    assert out.p_mixed_logits is not None
    target, loss, _ = provider("mixup").loss(out)
    wanted, weight = torch.zeros(B, C, dtype=torch.float64), []
    for i in range(B):
        j = int(mixture.order[i])
        own, other = 0.7 * CLEAN[i], 0.3 * CLEAN[j]
        wanted[i] = (own * rows(out)[i] + other * rows(out)[j]) / (own + other)
        weight.append(own + other)
    torch.testing.assert_close(target, wanted)
    assert float(loss) == pytest.approx(slow_cross_entropy(out, out.p_mixed_logits, wanted, weight))


def test_mixing_by_hand():
    mixture = Mixture(torch.tensor([1, 2, 0]), 0.75)
    x = torch.tensor([[4.0], [8.0], [0.0]])
    assert mixture.inputs(x).tolist() == [[5.0], [6.0], [1.0]]
    images = torch.rand(3, 3, 2, 2)
    assert mixture.inputs(images).shape == images.shape
    # Sample 1 is out: its partner keeps a whole label at three quarters of the weight.
    clean = torch.tensor([True, False, True])
    target, weight = mixture.targets(torch.eye(3), clean)
    assert target.tolist() == [[1.0, 0, 0], [0, 0, 1.0], [0.25, 0, 0.75]]
    assert weight.tolist() == [0.75, 0.25, 1.0]


def test_a_resumed_generator_mixes_the_same():
    scheme = provider("mixup")
    generator = torch.Generator().manual_seed(3)
    scheme.mix(8, generator)
    state = generator.get_state()
    first = scheme.mix(8, generator)
    torch.rand(5)  # the global generator plays no part
    second = scheme.mix(8, torch.Generator().set_state(state))
    assert first is not None
    assert second is not None
    assert first.share == second.share
    assert torch.equal(first.order, second.order)


def test_shares_follow_the_beta_distribution():
    generator = torch.Generator().manual_seed(0)
    mixtures = [provider("mixup", mixup_alpha=0.5).mix(2, generator) for _ in range(2000)]
    shares = torch.tensor([m.share for m in mixtures if m is not None], dtype=torch.float64)
    assert ((shares >= 0) & (shares <= 1)).all()
    # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)) = 1/8; four standard errors
    assert float(shares.mean()) == pytest.approx(0.5, abs=4 * math.sqrt(1 / 8 / 2000))
    assert float(shares.var()) == pytest.approx(1 / 8, abs=0.01)


@both
def test_cb_and_mixup_add_up(multi):
    out = outputs(multi=multi)
    found = provider("cb+mixup").loss(out)
    cb, mixup = provider("cb").loss(out), provider("mixup").loss(out)
    torch.testing.assert_close(found.loss, cb.loss)
    torch.testing.assert_close(found.mixed, mixup.loss)
    torch.testing.assert_close(found.target, cb.target)


def test_only_mixup_mixes_and_only_cb_reads_the_dictionary():
    generator = torch.Generator().manual_seed(0)
    for name, kind in PROVIDERS.items():
        assert (kind().mix(4, generator) is not None) == kind.mixes == ("mixup" in name)
        assert kind.uses_dictionary == ("cb" in name)


# ---------------------------------------------------------------------------- weights


def released(name: str, out: Outputs) -> float:
    """What takes the place of L_cls in the released scripts (beta 0.1), term by term, one label."""
    log_p = out.p_logits.log_softmax(1)
    s = out.q_logits.softmax(1)
    terms = []
    for i in range(B):
        if not CLEAN[i]:
            continue
        y = int(out.labels[i])
        hard = -float(log_p[i, y])
        even = -sum(float(log_p[i, c]) / C for c in range(C))
        own = -sum(float(log_p[i, c].exp() * log_p[i, c]) for c in range(C))
        self_label = -sum(float(s[i, c] * log_p[i, c]) for c in range(C))
        confidence = float(s[i, y])
        terms.append({
            "smoothing": 0.9 * hard + 0.1 * even,
            "bootstrap": 0.9 * hard + 0.1 * own,
            "scc": confidence * hard + (1 - confidence) * self_label,
            "mixup": 0.0,
            "ncr": 0.9 * hard,
            "cb": 0.9 * hard,
            "cb+mixup": 0.9 * hard,
        }[name])  # fmt: skip
    found = sum(terms) / len(terms)
    if "mixup" in name:
        found += float(provider("mixup").loss(out).loss)
    if name == "ncr" or "cb" in name:
        found += 0.1 * float(provider(name).loss(out).loss)
    return found


@pytest.mark.parametrize("name", ["smoothing", "bootstrap", "scc", "mixup", "ncr", "cb", "cb+mixup"])
def test_with_the_defaults_each_provider_weighs_what_it_does_in_the_released_scripts(name):
    """lambda_bts multiplies nothing that has a coefficient of its own."""
    out = outputs()
    scheme = provider(name)
    _, loss, mixed = scheme.loss(out)
    terms = {"cls": classification_loss(out.p_logits, out.labels), "bts": loss}
    terms |= {} if mixed is None else {"mix": mixed}
    assert float(total(terms, scheme.weights(0.1))) == pytest.approx(released(name, out))


def test_weights_are_settings():
    assert provider("mixup", mixup_weight=0.3).weights(0.1) == {"bts": 0.3}
    assert provider("cb+mixup", mixup_weight=0.3).weights(0.2) == {"bts": 0.2, "mix": 0.3}
    assert provider("scc", scc_weight=0.4).weights(0.1) == {"bts": 0.4}
    assert provider("ncr", ncr_weight=0.3).weights(0.1) == {"bts": 0.3}
    assert provider("ncr").weights(0.2) == provider("cb").weights(0.2) == {"bts": 0.2}
    assert provider("smoothing").weights(0.2) == provider("bootstrap").weights(0.2) == {"bts": 1.0}


# ---------------------------------------------------------------------------- every provider


@every
@both
def test_without_a_clean_sample_the_loss_is_zero_with_finite_gradients(name, multi):
    logits = [outputs(seed=s).p_logits.requires_grad_() for s in range(3)]
    labels = torch.full((B, C) if multi else (B,), -1)
    out = outputs(multi=multi, labels=labels)
    p, q, mixed = logits
    out = dataclasses.replace(out, p_logits=p, q_logits=q, p_mixed_logits=mixed)
    loss = provider(name).loss(out).loss
    assert loss.item() == 0
    loss.backward()
    for tensor in logits:
        assert tensor.grad is None or not tensor.grad.any()


@every
@both
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_extreme_logits_stay_finite(name, multi, scale):
    logits = (torch.eye(B, C) * scale).requires_grad_()
    changes = {"p_logits": logits, "q_logits": logits, "p_mixed_logits": logits}
    out = outputs(multi=multi)
    floats = {
        f.name: getattr(out, f.name).float()
        for f in dataclasses.fields(out)
        if isinstance(getattr(out, f.name), Tensor) and f.name != "labels"
    }
    out = dataclasses.replace(out, **(floats | changes))
    loss = provider(name).loss(out).loss
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@every
@both
@given(seed=seeds)
def test_targets_are_distributions_of_the_clean_samples(name, multi, seed):
    out = outputs(seed, multi=multi)
    scheme = provider(name)
    target = scheme.loss(out).target[torch.tensor(CLEAN).bool()]
    assert not target.requires_grad
    assert ((target >= 0) & (target <= 1 + 1e-9)).all()
    if not multi:
        sums = target.sum(1)
        sums = sums[sums > 0]  # ncr: nobody is similar
        torch.testing.assert_close(sums, torch.ones_like(sums))


# Not ncr: its neighbours are those of the rank's own batch.
@pytest.mark.parametrize("name", sorted(PROVIDERS.keys() - {"ncr"}))
@both
def test_two_ranks_average_to_the_global_loss(name, multi):
    out = outputs(multi=multi)
    pairs = torch.tensor([1, 2, 0, 4, 5, 3])  # mixed within each rank
    out = dataclasses.replace(out, mixture=Mixture(pairs, 0.5))
    scheme = provider(name)
    whole = scheme.loss(out).loss
    parts = []
    for half in (slice(0, 3), slice(3, 6)):
        names = ("p_logits", "q_logits", "v", "z", "labels", "p_mixed_logits")
        cut = {key: getattr(out, key)[half] for key in names}
        cut["mixture"] = Mixture(torch.tensor([1, 2, 0]), 0.5)
        parts.append(scheme.loss(dataclasses.replace(out, **cut), count=sum(CLEAN) / 2).loss)
    torch.testing.assert_close(sum(parts) / 2, whole)


# ---------------------------------------------------------------------------- messages


def test_settings_of_other_providers_are_ignored():
    assert provider("ncr", neighbours=3, tau=0.5) == provider("ncr", neighbours=3)


def test_missing_inputs_are_named():
    with pytest.raises(RunError, match="CollectiveBootstrap got no dictionary"):
        provider("cb").loss(dataclasses.replace(outputs(), q_keys=None))
    with pytest.raises(RunError, match="Mixup got no mixed batch"):
        provider("mixup").loss(dataclasses.replace(outputs(), mixture=None))
