"""CleanNet and MentorNet: losses and weights by hand, and that they tell right labels from wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from capro.bench.baselines import mentors
from capro.pipeline.progress import silent
from capro.train.batches import Batch
from tests.bench.baselines import toy_work
from tests.bench.baselines.toy_work import CLASSES, ToyWork, separation

VERIFIED = 96


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CLEANNET_STEPS", 100), ("REFERENCES", 8)):
        monkeypatch.setattr(mentors, name, value)


def test_cleannet_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork(verified=VERIFIED)
    assert work.accuracy(mentors.cleannet(work)) > work.accuracy(work.step1()) + 0.15


def test_verified_samples_teach_which_other_labels_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork(verified=VERIFIED)
    others = np.setdiff1d(np.arange(len(work.v)), work.verified().rows)
    weights = mentors.sample_weights(work).numpy()[others]
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert separation(weights, work.right[others]) > 0.9
    swapped = work.verified()._replace(right=~work.verified().right)  # the person says the opposite
    monkeypatch.setattr(work, "verified", lambda: swapped)
    assert separation(mentors.sample_weights(work).numpy()[others], work.right[others]) < 0.5


def test_the_loss_is_the_papers() -> None:
    cosine = torch.linspace(-1, 1, 21)
    right = torch.arange(21) % 2 == 0
    slow = [
        1 - c if r else 5.0 * max(0.0, c - 0.1) for c, r in zip(cosine.tolist(), right.tolist(), strict=True)
    ]
    torch.testing.assert_close(mentors.verification_loss(cosine, right), torch.tensor(slow))


def test_verified_samples_count_whole_others_a_tenth_on_their_own_side() -> None:
    torch.manual_seed(0)
    cosine, right = torch.tensor([0.6, 0.7, 0.3, 0.05]), torch.tensor([True, False])
    v, rebuilt = torch.randn(4, 3), torch.randn(4, 3)
    slow = [1 - 0.6, 5 * (0.7 - 0.1), 0.1 * (1 - 0.3), 0.0]  # the third is believed, the fourth is not
    for row, (a, b) in enumerate(zip(v.tolist(), rebuilt.tolist(), strict=True)):
        slow[row] += 0.1 * sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    assert mentors.total_loss(cosine, right, v, rebuilt).item() == pytest.approx(sum(slow) / 4, rel=1e-5)


def test_a_prototype_is_a_weighted_mean_of_its_references() -> None:
    torch.manual_seed(0)
    net, references = mentors.CleanNet(5), torch.randn(2, 3, 5)
    found = net.prototypes(references)
    for c in range(2):
        h = [net.members(x) for x in references[c]]
        attention = [math.exp(net.attention(x).item()) for x in h]
        mean = sum(a / sum(attention) * x for a, x in zip(attention, h, strict=True))
        torch.testing.assert_close(found[c], net.set(mean))


def test_weights_are_the_positive_part_of_the_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentors, "BLOCK", 4)
    torch.manual_seed(0)
    net, v, references = mentors.CleanNet(5), torch.randn(10, 5), torch.randn(3, 2, 5)
    labels = torch.arange(10) % 3
    found = mentors.relevance(net, v, labels, references)
    prototypes = net.prototypes(references)
    for x, y, weight in zip(v, labels.tolist(), found.tolist(), strict=True):
        a, b = net.query(x), prototypes[y]
        assert weight == pytest.approx(max(0.0, (a @ b / (a.norm() * b.norm())).item()), abs=1e-5)


def test_references_are_centres_of_each_class() -> None:
    rng = np.random.default_rng(0)
    v, labels = rng.normal(size=(90, 3)).astype(np.float32), np.repeat([0, 1, 3], [80, 8, 2])
    found = mentors.reference_sets(v, labels, CLASSES, seed=0).numpy()
    assert found.shape == (CLASSES, mentors.REFERENCES, 3)
    assert not found[2].any()  # nobody has the label
    np.testing.assert_allclose(
        np.unique(found[3].round(5), axis=0), np.unique(v[88:].round(5), axis=0), atol=1e-4
    )
    assert len(np.unique(found[1].round(4), axis=0)) == 8  # each its own centre, repeated
    assert len(np.unique(found[0].round(4), axis=0)) == mentors.REFERENCES


EPOCHS = 20


@pytest.mark.parametrize("verified", [0, 48])
def test_mentornet_it_beats_vanilla_where_two_fifths_are_wrong(verified: int) -> None:
    work = ToyWork(verified=verified)
    made = mentors.mentornet(work)
    assert made[1]["mentor"] == ("data-driven" if verified else "predefined")
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.15


def test_the_mentors_weights_are_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork()
    mentored = work.accuracy(mentors.mentornet(work))
    monkeypatch.setattr(mentors, "predefined", lambda above, linear: torch.ones_like(above))
    assert mentored > work.accuracy(mentors.mentornet(work)) + 0.1


def test_a_mentor_learns_from_verified_samples_which_losses_are_of_wrong_labels() -> None:
    rng = np.random.default_rng(0)
    right = rng.random(200) < 0.6
    losses = torch.from_numpy(
        np.where(right, rng.gamma(2, 0.3, 200), rng.gamma(6, 0.5, 200)).astype(np.float32)
    )
    mentor = mentors.taught(
        losses[:80], losses[:80] - 1, torch.from_numpy(right[:80]).long(), seed=0, bar=silent
    )
    weights = mentor(losses[80:], losses[80:] - 1).numpy()
    assert separation(weights, right[80:]) > 0.9
    assert ((weights >= 0) & (weights <= 1)).all()
    opposite = mentors.taught(
        losses[:80], losses[:80] - 1, torch.from_numpy(~right[:80]).long(), seed=0, bar=silent
    )
    assert separation(opposite(losses[80:], losses[80:] - 1).numpy(), right[80:]) < 0.1


def batch(epoch: int, step: int, size: int) -> Batch:
    return replace(toy_work.batch(np.zeros((size, 1), dtype=np.float32), epoch), step=step)


def test_weights_are_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentors, "LEFT_OUT", (0.0, 0.0))
    work = ToyWork(overrides=(f"pretrain.epochs={EPOCHS}",))
    made = mentors.Mentored(work, work.net(), noise=0.4, verified=None)
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
    made = mentors.Mentored(work, work.net(), noise=0.0, verified=None)
    out = [(made.weights_of(batch(e, s, 40), torch.ones(40)) == 0).numpy() for e in (0, 10) for s in (0, 1)]
    assert [part.sum() for part in out] == [20, 20, 2, 2]
    assert (out[0] != out[1]).any()
    again = mentors.Mentored(work, work.net(), noise=0.0, verified=None)
    assert ((again.weights_of(batch(0, 0, 40), torch.ones(40)) == 0).numpy() == out[0]).all()


def test_the_mentor_learns_twice_each_time_from_the_epoch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lessons: list[tuple[int, list[float]]] = []

    def taught(losses, above, right, *, seed, bar):  # type: ignore[no-untyped-def]
        lessons.append((epoch, losses.tolist()))
        return mentors.Mentor().requires_grad_(False)

    monkeypatch.setattr(mentors, "taught", taught)
    work = ToyWork(n=40, overrides=(f"pretrain.epochs={EPOCHS}",))
    verified = torch.full((40,), mentors.UNKNOWN)
    verified[3], verified[5] = 1, 0
    made = mentors.Mentored(work, work.net(), noise=0.4, verified=verified)
    for epoch in range(EPOCHS):
        made.begin_epoch(epoch, resumed=False)
        made.weights_of(batch(epoch, 0, 40), torch.arange(40.0) + 100 * epoch)
    assert lessons == [(4, [303.0, 305.0]), (15, [1403.0, 1405.0])]


def test_the_data_driven_mentor_weighs_by_what_it_has_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where verified samples of high loss are the right ones, the loss alone would mislead."""
    monkeypatch.setattr(mentors, "LEFT_OUT", (0.0, 0.0))
    work = ToyWork(n=40, overrides=(f"pretrain.epochs={EPOCHS}",))
    losses = torch.linspace(0.1, 4.0, 40)
    verified = (losses > 2).long()
    verified[1::2] = mentors.UNKNOWN
    made = mentors.Mentored(work, work.net(), noise=0.4, verified=verified)
    for epoch in range(5):
        made.begin_epoch(epoch, resumed=False)
        weights = made.weights_of(batch(epoch, 0, 40), losses)
        if epoch < 4:
            assert (weights == 1).all()  # burn-in
    other = verified == mentors.UNKNOWN
    assert weights[other & (losses > 2.2)].min() > 0.9
    assert weights[other & (losses < 1.8)].max() < 0.1
    typical = torch.quantile(losses, 0.6)  # the same in each epoch: so is its average
    torch.testing.assert_close(weights, made.mentor(losses, losses - typical))
