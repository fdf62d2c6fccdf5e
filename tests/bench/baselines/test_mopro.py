"""MoPro: prototypes that begin as zero, the rule without anchors, and what it gains where labels are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from capro.bench.baselines import mopro
from capro.core.references import provider
from capro.errors import ConfigError
from capro.pipeline.artefacts import KEY_FEATURES
from capro.train.batches import Batch
from capro.train.judgement import Judge
from tests.bench.baselines.toy_work import CLASSES, ToyWork

ALPHA, TAU = 0.5, 0.2


def objective(work: ToyWork, **changed: float) -> mopro.MomentumPrototypes:
    own = mopro.training_settings(work.run.settings).model_copy(update=changed)
    net, labels = work.net(), work.training.labels
    return mopro.MomentumPrototypes(
        net, Judge(work.task, own), provider("none"), labels, torch.zeros_like(labels, dtype=torch.bool),
        work.inputs(net), work.training.positions, work.ranks, tau=TAU, seed=0,
    )  # fmt: skip


def batch(work: ToyWork, epoch: int, rows: range) -> Batch:
    everyone = np.array(rows)
    query, key = torch.from_numpy(work.v[everyone]), torch.from_numpy(work._views()[0][everyone])
    return Batch(epoch, 0, everyone, slice(0, len(everyone)), query, key, np.arange(len(everyone)))


@pytest.mark.parametrize("several", [False, True])
def test_it_beats_vanilla_where_two_fifths_are_wrong(several: bool) -> None:
    work = ToyWork(several=several)
    assert work.accuracy(mopro.learn(work)) > work.accuracy(work.step1()) + 0.1


def test_the_rule_is_what_helps() -> None:
    work = ToyWork()
    never = objective(work, correct_after=1000)
    work.fit(never, "MoPro without its rule")
    assert work.accuracy(mopro.learn(work)) > work.accuracy(never.net) + 0.1


def test_prototypes_begin_as_zero_and_follow_the_embeddings_by_web_label() -> None:
    work = ToyWork()
    made = objective(work, prototype_momentum=0.9)
    assert not made.prototypes.any()
    made.begin_epoch(0, resumed=False)
    slow = torch.zeros(CLASSES, 8)
    for start in (0, 30):
        now = batch(work, 0, range(start, start + 30))
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
        now = batch(work, 0, range(start, start + 60))
        made.terms(now)
        made.after(now)
    made.begin_epoch(1, resumed=False)
    now = batch(work, 1, range(40))
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
    assert mopro.training_settings(work.run.settings).correct_after == 11
    before = mopro.own_settings(work.run.settings)
    later = ToyWork(overrides=("pretrain.epochs=90", "train.correct_after=3", "baselines.mopro_start=0.5"))
    assert mopro.training_settings(later.run.settings).correct_after == 45
    assert mopro.own_settings(later.run.settings) != before  # the row is trained again


def test_without_key_views_it_is_refused() -> None:
    work = ToyWork()
    work.artefacts[KEY_FEATURES.file] = work.v[None][:0]
    with pytest.raises(ConfigError, match="mopro compares two views") as error:
        mopro.learn(work)
    assert "method=paper" in error.value.hint
