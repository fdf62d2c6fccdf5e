"""CleanNet: its formulas against slow ones, and what verified samples teach about the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from capro.bench.baselines import cleannet
from tests.bench.baselines.toy_work import CLASSES, ToyWork, separation

VERIFIED = 96


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STEPS", 100), ("REFERENCES", 8)):
        monkeypatch.setattr(cleannet, name, value)


def test_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork(verified=VERIFIED)
    assert work.accuracy(cleannet.learn(work)) > work.accuracy(work.step1()) + 0.15


def test_verified_samples_teach_which_other_labels_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork(verified=VERIFIED)
    others = np.setdiff1d(np.arange(len(work.v)), work.verified().rows)
    weights = cleannet.sample_weights(work).numpy()[others]
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert separation(weights, work.right[others]) > 0.9
    swapped = work.verified()._replace(right=~work.verified().right)  # the person says the opposite
    monkeypatch.setattr(work, "verified", lambda: swapped)
    assert separation(cleannet.sample_weights(work).numpy()[others], work.right[others]) < 0.5


def test_the_loss_is_the_papers() -> None:
    cosine = torch.linspace(-1, 1, 21)
    right = torch.arange(21) % 2 == 0
    slow = [
        1 - c if r else 5.0 * max(0.0, c - 0.1) for c, r in zip(cosine.tolist(), right.tolist(), strict=True)
    ]
    torch.testing.assert_close(cleannet.verification_loss(cosine, right), torch.tensor(slow))


def test_verified_samples_count_whole_others_a_tenth_on_their_own_side() -> None:
    torch.manual_seed(0)
    cosine, right = torch.tensor([0.6, 0.7, 0.3, 0.05]), torch.tensor([True, False])
    v, rebuilt = torch.randn(4, 3), torch.randn(4, 3)
    slow = [1 - 0.6, 5 * (0.7 - 0.1), 0.1 * (1 - 0.3), 0.0]  # the third is believed, the fourth is not
    for row, (a, b) in enumerate(zip(v.tolist(), rebuilt.tolist(), strict=True)):
        slow[row] += 0.1 * sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    assert cleannet.total_loss(cosine, right, v, rebuilt).item() == pytest.approx(sum(slow) / 4, rel=1e-5)


def test_a_prototype_is_a_weighted_mean_of_its_references() -> None:
    torch.manual_seed(0)
    net, references = cleannet.CleanNet(5), torch.randn(2, 3, 5)
    found = net.prototypes(references)
    for c in range(2):
        h = [net.members(x) for x in references[c]]
        attention = [math.exp(net.attention(x).item()) for x in h]
        mean = sum(a / sum(attention) * x for a, x in zip(attention, h, strict=True))
        torch.testing.assert_close(found[c], net.set(mean))


def test_weights_are_the_positive_part_of_the_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleannet, "BLOCK", 4)
    torch.manual_seed(0)
    net, v, references = cleannet.CleanNet(5), torch.randn(10, 5), torch.randn(3, 2, 5)
    labels = torch.arange(10) % 3
    found = cleannet.relevance(net, v, labels, references)
    prototypes = net.prototypes(references)
    for x, y, weight in zip(v, labels.tolist(), found.tolist(), strict=True):
        a, b = net.query(x), prototypes[y]
        assert weight == pytest.approx(max(0.0, (a @ b / (a.norm() * b.norm())).item()), abs=1e-5)


def test_references_are_centres_of_each_class() -> None:
    rng = np.random.default_rng(0)
    v, labels = rng.normal(size=(90, 3)).astype(np.float32), np.repeat([0, 1, 3], [80, 8, 2])
    found = cleannet.reference_sets(v, labels, CLASSES, seed=0).numpy()
    assert found.shape == (CLASSES, cleannet.REFERENCES, 3)
    assert not found[2].any()  # nobody has the label
    np.testing.assert_allclose(
        np.unique(found[3].round(5), axis=0), np.unique(v[88:].round(5), axis=0), atol=1e-4
    )
    assert len(np.unique(found[1].round(4), axis=0)) == 8  # each its own centre, repeated
    assert len(np.unique(found[0].round(4), axis=0)) == cleannet.REFERENCES
