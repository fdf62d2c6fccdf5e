"""NCR, SCC and MoPro: losses by hand, and that they help where labels are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from capro.bench.baselines import losses
from capro.core.references import provider, self_contained_target
from capro.errors import ConfigError
from capro.pipeline.artefacts import KEY_FEATURES
from capro.train.batches import Batch
from capro.train.judgement import Judge
from tests.bench.baselines.toy_work import CLASSES, ToyWork, batch


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_cross_entropy_where_two_fifths_are_wrong(seed: int) -> None:
    work = ToyWork(seed=seed)
    alone = work.accuracy(losses.ncr(ToyWork(seed=seed, overrides=("reference.ncr_weight=0",))))
    made = losses.ncr(work)
    assert work.accuracy(made) > max(alone, work.accuracy(work.step1())) + 0.03
    assert made[1] == {"weight": 0.3, "start": 1}


def test_ncr_with_several_labels_it_learns() -> None:
    work = ToyWork(several=True)
    assert work.accuracy(losses.ncr(work)) > work.accuracy(work.step1())


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
    found = losses.consistency(logits, v, k=k, temperature=2.0, multi_label=several, count=n)
    assert float(found) == pytest.approx(slow(logits, v, k, 2.0, several), abs=1e-9)
    assert float(found) >= -1e-12  # a divergence


def test_equal_predictions_are_consistent() -> None:
    logits = torch.randn(1, 3).repeat(5, 1)
    found = losses.consistency(logits, torch.rand(5, 4), k=2, temperature=2.0, multi_label=False, count=5)
    assert float(found) == pytest.approx(0, abs=1e-6)


def test_a_batch_of_one_has_no_neighbours() -> None:
    logits = torch.randn(1, 3, requires_grad=True)
    found = losses.consistency(logits, torch.rand(1, 4), k=2, temperature=2.0, multi_label=False, count=1)
    found.backward()
    assert float(found.detach()) == 0


def test_neighbours_learn_too() -> None:
    """The gradient goes through their mean: the loss of sample 0 alone moves the logits of sample 1."""
    logits = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]], requires_grad=True)
    v = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [-1.0, 0.0, 0.0]])  # nobody is similar to the third
    losses.consistency(logits, v, k=1, temperature=2.0, multi_label=False, count=1).backward()
    assert logits.grad is not None
    assert bool(logits.grad[1].any())
    assert not bool(logits.grad[2].any())


def test_consistency_begins_late() -> None:
    work = ToyWork(n=20)
    made = losses.NeighbourConsistent(work, work.net(), weight=0.3, k=5, temperature=2.0, start=2)
    assert [set(made.terms(batch(work.v, epoch))) for epoch in (1, 2)] == [{"cls"}, {"cls", "bts"}]


@pytest.mark.parametrize("seed", [0, 1])
def test_it_beats_vanilla_and_more_of_the_web_labels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fifths of the labels are wrong, and step 1 has not learnt them by heart yet."""
    work = ToyWork(seed=seed, overrides=("pretrain.epochs=6",))
    made = losses.scc(work)
    assert 0 < made[1]["confidence"] < 1
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.03
    trusting = torch.eye(CLASSES)[work.training.labels], torch.ones(len(work.truth), 1)
    monkeypatch.setattr(
        losses, "self_contained_target", lambda *_, **__: trusting
    )  # the same with confidence 1
    assert work.accuracy(made) > work.accuracy(losses.scc(work)) + 0.05


def test_scc_with_several_labels_it_learns() -> None:
    work = ToyWork(several=True)
    assert work.accuracy(losses.scc(work)) > work.accuracy(work.step1())


def test_targets_equal_loops() -> None:
    rng = np.random.default_rng(0)
    s = rng.dirichlet(np.ones(CLASSES), 9)
    y = rng.integers(0, CLASSES, 9)
    found, confidence = self_contained_target(torch.from_numpy(s), torch.from_numpy(y), power=2)
    for i in range(9):
        c = s[i][y[i]] ** 2
        assert float(confidence[i, 0]) == pytest.approx(c)
        for k in range(CLASSES):
            assert float(found[i, k]) == pytest.approx(c * (k == y[i]) + (1 - c) * s[i][k])
    np.testing.assert_allclose(found.sum(dim=1), 1)


def test_targets_of_several_labels_equal_loops() -> None:
    rng = np.random.default_rng(0)
    s, y = rng.random((6, CLASSES)), rng.integers(0, 2, (6, CLASSES))
    found, _ = self_contained_target(torch.from_numpy(s), torch.from_numpy(y), power=2)
    for i in range(6):
        for k in range(CLASSES):
            c = (s[i, k] if y[i, k] else 1 - s[i, k]) ** 2
            assert float(found[i, k]) == pytest.approx(c * y[i, k] + (1 - c) * s[i, k])


def test_a_label_that_step_1_believes_stays_and_one_that_it_doubts_gives_way() -> None:
    s = torch.tensor([[0.99, 0.01], [0.01, 0.99]])
    found, _ = self_contained_target(s, torch.tensor([0, 0]), power=2)
    assert found[0, 0] > 0.99
    assert found[1, 0] < 0.02


ALPHA, TAU = 0.5, 0.2


def objective(work: ToyWork, **changed: float) -> losses.MomentumPrototypes:
    own = losses.mopro_training(work.run.settings).model_copy(update=changed)
    net, labels = work.net(), work.training.labels
    return losses.MomentumPrototypes(
        net, Judge(work.task, own), provider("none"), labels, torch.zeros_like(labels, dtype=torch.bool),
        work.inputs(net), work.training.positions, work.ranks, tau=TAU, seed=0,
    )  # fmt: skip


def part_of(work: ToyWork, epoch: int, rows: range) -> Batch:
    everyone = np.array(rows)
    query, key = torch.from_numpy(work.v[everyone]), torch.from_numpy(work._views()[0][everyone])
    return Batch(epoch, 0, everyone, slice(0, len(everyone)), query, key, np.arange(len(everyone)))


@pytest.mark.parametrize("several", [False, True])
def test_it_beats_vanilla_where_two_fifths_are_wrong(several: bool) -> None:
    work = ToyWork(several=several)
    assert work.accuracy(losses.mopro(work)) > work.accuracy(work.step1()) + 0.1


def test_the_rule_is_what_helps() -> None:
    work = ToyWork()
    never = objective(work, correct_after=1000)
    work.fit(never, "MoPro without its rule")
    assert work.accuracy(losses.mopro(work)) > work.accuracy(never.net) + 0.1


def test_prototypes_begin_as_zero_and_follow_the_embeddings_by_web_label() -> None:
    work = ToyWork()
    made = objective(work, prototype_momentum=0.9)
    assert not made.prototypes.any()
    made.begin_epoch(0, resumed=False)
    slow = torch.zeros(CLASSES, 8)
    for start in (0, 30):
        now = part_of(work, 0, range(start, start + 30))
        with torch.no_grad():
            z = made.net(now.query).query.z
        for one, label in zip(z, work.training.labels[now.everyone].tolist(), strict=True):
            slow[label] = 0.9 * slow[label] + 0.1 * one
        slow = functional.normalize(slow, dim=1)
        assert "pro" not in made.terms(now)
        made.after(now)
        assert (made.prototypes * slow).sum(dim=1).min() > (0.99 if start == 0 else 0.98)
        slow = made.prototypes.clone()  # the first batch's mean weighs all alike: go on from there


def test_the_losses_of_a_late_epoch_are_those_of_the_paper() -> None:
    work = ToyWork()
    made = objective(work, correct_after=1)
    made.begin_epoch(0, resumed=False)
    for start in range(0, 240, 60):
        now = part_of(work, 0, range(start, start + 60))
        made.terms(now)
        made.after(now)
    made.begin_epoch(1, resumed=False)
    now = part_of(work, 1, range(40))
    prototypes, keys = made.prototypes.clone(), made._dictionary.keys.clone()
    with torch.no_grad():
        out, z_key = made.net(now.query, now.key)
    cls, pro, ins = [], [], []
    for i, web in enumerate(work.training.labels[:40].tolist()):
        p, r = out.p[i].softmax(dim=0), (prototypes @ out.z[i] / TAU).softmax(dim=0)
        o = ALPHA * p + (1 - ALPHA) * r
        y = web if o[web] > 1 / CLASSES else -1
        if o.max() > made._settings.gamma:
            y = int(o.argmax())
        if y >= 0:
            cls.append(-p[y].log())
            pro.append(-r[y].log())
        negatives = [torch.exp(out.z[i] @ key / TAU) for key in keys]
        positive = torch.exp(out.z[i] @ z_key[i] / TAU)
        ins.append(-torch.log(positive / (positive + sum(negatives))))
    terms = made.terms(now)
    assert 0 < len(cls) < 40
    assert set(terms) == {"cls", "pro", "ins"}
    for name, values in (("cls", cls), ("pro", pro), ("ins", ins)):
        torch.testing.assert_close(terms[name].detach(), sum(values) / len(values), atol=1e-4, rtol=1e-4)


def test_correction_begins_at_an_eighth_of_the_epochs() -> None:
    work = ToyWork(overrides=("pretrain.epochs=90", "train.correct_after=3"))
    assert losses.mopro_training(work.run.settings).correct_after == 11
    before = losses.mopro_settings(work.run.settings)
    later = ToyWork(overrides=("pretrain.epochs=90", "train.correct_after=3", "baselines.mopro_start=0.5"))
    assert losses.mopro_training(later.run.settings).correct_after == 45
    assert losses.mopro_settings(later.run.settings) != before  # the row is trained again


def test_without_key_views_it_is_refused() -> None:
    work = ToyWork()
    work.artefacts[KEY_FEATURES.file] = work.v[None][:0]
    with pytest.raises(ConfigError, match="mopro compares two views") as error:
        losses.mopro(work)
    assert "method=paper" in error.value.hint
