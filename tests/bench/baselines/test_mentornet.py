"""MentorNet: weights against a slow reference, what the mentor learns, and what both curricula gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from capro.bench.baselines import mentornet
from capro.pipeline.progress import silent
from capro.train.batches import Batch
from tests.bench.baselines import toy_work
from tests.bench.baselines.toy_work import ToyWork, separation

EPOCHS = 20


@pytest.mark.parametrize("verified", [0, 48])
def test_it_beats_vanilla_where_two_fifths_are_wrong(verified: int) -> None:
    work = ToyWork(verified=verified)
    made = mentornet.learn(work)
    assert made[1]["mentor"] == ("data-driven" if verified else "predefined")
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.15


def test_the_mentors_weights_are_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork()
    mentored = work.accuracy(mentornet.learn(work))
    monkeypatch.setattr(mentornet, "predefined", lambda above, linear: torch.ones_like(above))
    assert mentored > work.accuracy(mentornet.learn(work)) + 0.1


def test_a_mentor_learns_from_verified_samples_which_losses_are_of_wrong_labels() -> None:
    rng = np.random.default_rng(0)
    right = rng.random(200) < 0.6
    losses = torch.from_numpy(
        np.where(right, rng.gamma(2, 0.3, 200), rng.gamma(6, 0.5, 200)).astype(np.float32)
    )
    mentor = mentornet.taught(
        losses[:80], losses[:80] - 1, torch.from_numpy(right[:80]).long(), seed=0, bar=silent
    )
    weights = mentor(losses[80:], losses[80:] - 1).numpy()
    assert separation(weights, right[80:]) > 0.9
    assert ((weights >= 0) & (weights <= 1)).all()
    opposite = mentornet.taught(
        losses[:80], losses[:80] - 1, torch.from_numpy(~right[:80]).long(), seed=0, bar=silent
    )
    assert separation(opposite(losses[80:], losses[80:] - 1).numpy(), right[80:]) < 0.1


def batch(epoch: int, step: int, size: int) -> Batch:
    return replace(toy_work.batch(np.zeros((size, 1), dtype=np.float32), epoch), step=step)


def test_weights_are_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentornet, "LEFT_OUT", (0.0, 0.0))
    work = ToyWork(overrides=(f"pretrain.epochs={EPOCHS}",))
    made = mentornet.Mentored(work, work.net(), noise=0.4, verified=None)
    rng, average = np.random.default_rng(0), None
    for epoch in range(EPOCHS):
        losses = rng.gamma(2, 1, 11).astype(np.float32)
        typical = sorted(losses.tolist())[6]  # six of ten others are smaller: the 60th percentile
        average = typical if average is None else 0.9 * average + 0.1 * typical
        slow = []
        for loss in losses.tolist():
            if epoch < 4:
                slow.append(1.0)
            elif epoch < 18:
                slow.append(1.0 if loss <= average else 0.0)
            else:
                slow.append(min(1.0, max(0.0, 1 - (loss - average))))
        found = made.weights_of(batch(epoch, 0, 11), torch.from_numpy(losses))
        np.testing.assert_allclose(found.numpy(), slow, atol=1e-5)


def test_a_part_of_each_batch_is_left_out() -> None:
    work = ToyWork(overrides=(f"pretrain.epochs={EPOCHS}",))
    made = mentornet.Mentored(work, work.net(), noise=0.0, verified=None)
    out = [(made.weights_of(batch(e, s, 40), torch.ones(40)) == 0).numpy() for e in (0, 10) for s in (0, 1)]
    assert [part.sum() for part in out] == [20, 20, 2, 2]
    assert (out[0] != out[1]).any()
    again = mentornet.Mentored(work, work.net(), noise=0.0, verified=None)
    assert ((again.weights_of(batch(0, 0, 40), torch.ones(40)) == 0).numpy() == out[0]).all()


def test_the_mentor_learns_twice_each_time_from_the_epoch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lessons: list[tuple[int, list[float]]] = []

    def taught(losses, above, right, *, seed, bar):  # type: ignore[no-untyped-def]
        lessons.append((epoch, losses.tolist()))
        return mentornet.Mentor().requires_grad_(False)

    monkeypatch.setattr(mentornet, "taught", taught)
    work = ToyWork(n=40, overrides=(f"pretrain.epochs={EPOCHS}",))
    verified = torch.full((40,), mentornet.UNKNOWN)
    verified[3], verified[5] = 1, 0
    made = mentornet.Mentored(work, work.net(), noise=0.4, verified=verified)
    for epoch in range(EPOCHS):
        made.begin_epoch(epoch, resumed=False)
        made.weights_of(batch(epoch, 0, 40), torch.arange(40.0) + 100 * epoch)
    assert lessons == [(4, [303.0, 305.0]), (15, [1403.0, 1405.0])]


def test_the_data_driven_mentor_weighs_by_what_it_has_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where verified samples of high loss are the right ones, the loss alone would mislead."""
    monkeypatch.setattr(mentornet, "LEFT_OUT", (0.0, 0.0))
    work = ToyWork(n=40, overrides=(f"pretrain.epochs={EPOCHS}",))
    losses = torch.linspace(0.1, 4.0, 40)
    verified = (losses > 2).long()
    verified[1::2] = mentornet.UNKNOWN
    made = mentornet.Mentored(work, work.net(), noise=0.4, verified=verified)
    for epoch in range(5):
        made.begin_epoch(epoch, resumed=False)
        weights = made.weights_of(batch(epoch, 0, 40), losses)
        if epoch < 4:
            assert (weights == 1).all()  # burn-in
    other = verified == mentornet.UNKNOWN
    assert weights[other & (losses > 2.2)].min() > 0.9
    assert weights[other & (losses < 1.8)].max() < 0.1
    typical = torch.quantile(losses, 0.6)  # the same in each epoch: so is its average
    torch.testing.assert_close(weights, made.mentor(losses, losses - typical))
