"""Evidence: reading some rows of it, what a person has settled, and the space of an image-text model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given

from capro.core.evidence import JointSpace, JointVectors, text_weights
from tests.core.cases import FEW, SEEDS, evidence, generator, made_up, settled, unit_rows


def joint_evidence(pictures, prompts, texts):
    vectors = JointVectors(pictures, prompts, texts)
    return JointSpace.measured(vectors)(vectors)


@pytest.mark.parametrize(
    "rows", [slice(3, 9), np.array([5, 2, 11]), torch.arange(20) % 3 == 2], ids=["slice", "numbers", "mask"]
)
def test_rows_are_taken_of_every_part(rows):
    x, text, classes, y, _ = made_up(20)
    known = torch.full((20, 5), torch.nan)
    known[5], known[11, 2] = 0.0, 1.0
    joint = JointVectors(unit_rows(20, 6, 0).numpy(), unit_rows(4, 6, 1), [unit_rows(20, 6, 2)])
    whole = evidence(x.numpy(), [text], classes, y, anchors=y > 1, joint=joint, settled=settled(known))
    part = whole.take(rows)
    assert torch.equal(part.pictures, x[rows])
    assert torch.equal(part.texts[0], text[rows])
    assert torch.equal(part.answers[0], y[rows])
    assert torch.equal(part.anchors, (y > 1)[rows])
    assert torch.equal(part.joint.pictures, unit_rows(20, 6, 0)[rows])
    assert torch.equal(part.joint.texts[0], unit_rows(20, 6, 2)[rows])
    q = torch.rand(len(part), 5, generator=generator(0))
    expected = torch.where(known[rows].isnan(), q, known[rows])
    assert torch.equal(part.settle(q), expected)
    assert part.settled.whole.tolist() == (known[rows] == 0).all(1).nonzero()[:, 0].tolist()
    assert len(part) == len(x[rows])


@given(SEEDS)
@FEW
def test_joint_evidence_equals_the_slow_reference(seed):
    pictures, prompts, text = unit_rows(9, 5, seed), unit_rows(3, 5, seed + 1), unit_rows(9, 5, seed + 2)
    text[seed % 9] = 0
    found = joint_evidence(pictures, prompts, [text])
    away = []
    for c in range(3):
        column = [sum(float(a * b) for a, b in zip(p, prompts[c], strict=True)) for p in pictures]
        away.append([value - sum(column) / 9 for value in column])
    spread = math.sqrt(sum(value**2 for column in away for value in column) / 27)
    for i in range(9):
        assert found.cosines[i].tolist() == pytest.approx([away[c][i] / spread for c in range(3)], abs=1e-4)
    there = [i for i in range(9) if i != seed % 9]
    fit = {i: sum(float(a * b) for a, b in zip(pictures[i], text[i], strict=True)) for i in there}
    mean = sum(fit.values()) / 8
    deviation = math.sqrt(sum((value - mean) ** 2 for value in fit.values()) / 8)
    for i in range(9):
        slow = max(-3.0, min(3.0, (fit[i] - mean) / deviation)) if i in fit else 0.0
        assert found.fits[i, 0] == pytest.approx(slow, abs=1e-3)
    assert found.best.mean() == pytest.approx(0, abs=1e-5)


@given(SEEDS)
@FEW
def test_offsets_name_classes_and_none_of_these_apart(seed):
    found = joint_evidence(unit_rows(6, 4, seed), unit_rows(3, 4, seed + 1), [])
    offsets = found.offsets()
    assert offsets.shape == (6, 4, 2)
    assert torch.equal(offsets[:, :3, 0], found.cosines)
    assert torch.equal(offsets[:, 3, 1], found.best)
    assert not offsets[:, 3, 0].any()
    assert not offsets[:, :3, 1].any()


@given(SEEDS)
@FEW
def test_a_better_fit_never_counts_less(seed):
    fits = torch.randn(20, 1, generator=generator(seed)).sort(0)[0]
    weight = text_weights(fits, torch.tensor([0.7]))[:, 0]
    assert (weight.diff() >= 0).all()
    assert ((weight > 0) & (weight < 2)).all()
    assert torch.equal(text_weights(fits, torch.zeros(1)), torch.ones(20, 1))


def test_a_space_measured_on_some_samples_says_the_same_of_each():
    pictures, prompts, text = unit_rows(30, 6, 0), unit_rows(4, 6, 1), unit_rows(30, 6, 2)
    space = JointSpace.measured(JointVectors(pictures, prompts, [text]))
    whole, part = (space(JointVectors(pictures[p], prompts, [text[p]])) for p in (slice(None), slice(7)))
    for all_of_them, some in zip(whole, part, strict=True):
        assert torch.allclose(all_of_them[:7], some)
