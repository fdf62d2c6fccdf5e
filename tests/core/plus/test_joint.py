"""Evidence of an image-text model: the formulas, what it adds, and that a random one does no harm."""

import math

import pytest
import torch
from hypothesis import given
from torch.nn.functional import normalize

from capro.core import plus
from capro.core.plus.one_label import worth_a_start
from tests.core.plus.cases import FEW, SEEDS, generator, made_up, unit_rows
from tests.core.plus.test_several import tagged


def towers(z, texts, *, seed=0, knows=True):
    """Pictures of z, (n, C), prompts and one field of texts, in one space; a random tower knows nothing of z."""
    g, n = generator(seed + 100), len(z)
    prompts = normalize(torch.randn(z.shape[1], 24, generator=g), dim=1)
    if not knows:
        z, texts = z[torch.randperm(n, generator=g)], texts[torch.randperm(n, generator=g)]
    around = [
        normalize(part @ prompts + 0.25 * torch.randn(n, 24, generator=g), dim=1) for part in (z, texts)
    ]
    return plus.joint_evidence(around[0], prompts, [around[1] * texts.any(1, keepdim=True)])


def crawl(seed, n=400, classes=4):
    """Many wrong labels, hard pictures, and two texts in five that belong to another picture."""
    x, text, meanings, y, z = made_up(n, classes, seed=seed, noise=0.4)
    g = generator(seed)
    x = plus.centred(x + 0.25 * torch.randn(x.shape, generator=g))
    moved = torch.where(torch.rand(n, generator=g) < 0.4, torch.randperm(n, generator=g), torch.arange(n))
    text, shown = text[moved], torch.eye(classes)[z]
    return x, text, meanings, y, z, (shown, shown[moved] * text.any(1, keepdim=True))


def right(found, z):
    return float((found.q.argmax(1) == z).float().mean())


@given(SEEDS)
@FEW
def test_joint_evidence_equals_the_slow_reference(seed):
    pictures, prompts, text = unit_rows(9, 5, seed), unit_rows(3, 5, seed + 1), unit_rows(9, 5, seed + 2)
    text[seed % 9] = 0
    found = plus.joint_evidence(pictures, prompts, [text])
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
    found = plus.joint_evidence(unit_rows(6, 4, seed), unit_rows(3, 4, seed + 1), [])
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
    weight = plus.counted(fits, torch.tensor([0.7]))[:, 0]
    assert (weight.diff() >= 0).all()
    assert ((weight > 0) & (weight < 2)).all()
    assert torch.equal(plus.counted(fits, torch.zeros(1)), torch.ones(20, 1))


@pytest.mark.parametrize(("seed", "labels"), [(0, True), (1, True), (0, False)])
def test_it_helps_one_label(seed, labels):
    x, text, classes, y, z, (shown, told) = crawl(seed)
    y, anchors = (y, (text @ classes.T).max(1)[0] > 0.8) if labels else (torch.full_like(y, -1), None)
    without = plus.single_label(x, [text], classes, y, anchors=anchors)
    found = plus.single_label(x, [text], classes, y, anchors=anchors, joint=towers(shown, told, seed=seed))
    assert right(found, z) > right(without, z) + 0.05
    assert found.zero_shot_weight > 1
    assert found.fit_weights[0] > 1  # texts of other pictures count less
    assert (without.zero_shot_weight, without.fit_weights) == (None, None)


@pytest.mark.parametrize("labels", [True, False])
def test_a_random_tower_does_no_harm_to_one_label(labels):
    gains = []
    for seed in range(3):  # another choice of folds moves one crawl by up to 0.03
        x, text, classes, y, z, (shown, told) = crawl(seed)
        near = (text @ classes.T).max(1)[0]  # the nearest fifth: anchors that are a choice
        y, anchors = (y, near > near.quantile(0.8)) if labels else (torch.full_like(y, -1), None)
        assert anchors is None or worth_a_start(anchors, len(classes))
        without = plus.single_label(x, [text], classes, y, anchors=anchors)
        joint = towers(shown, told, seed=seed, knows=False)
        found = plus.single_label(x, [text], classes, y, anchors=anchors, joint=joint)
        gains.append(right(found, z) - right(without, z))
        assert abs(found.zero_shot_weight) < 0.5
        assert found.fit_weights.abs().max() < 0.5
    assert sum(gains) / 3 > -0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_several_labels(seed):
    x, title, classes, y, z = tagged(400, seed=seed)
    x = plus.centred(x + 0.5 * torch.randn(x.shape, generator=generator(seed)))
    told = z * title.any(1, keepdim=True)
    without, good, random = (
        plus.several_labels(x, [title], classes, y, class_names=classes, joint=joint)
        for joint in (None, towers(z, told, seed=seed), towers(z, told, seed=seed, knows=False))
    )
    correct = [float(((found.q > 0.5) == z).float().mean()) for found in (without, good, random)]
    assert correct[1] > correct[0] + 0.03
    assert correct[2] > correct[0] - 0.01
    assert good.zero_shot_weight > 1
    assert abs(random.zero_shot_weight) < 0.4
    assert good.fit_weights.shape == (1,)


def test_pictures_and_class_names_are_enough():
    x, _, classes, y, z, (shown, told) = crawl(2)
    joint = towers(shown, told)._replace(fits=torch.zeros(len(z), 0))
    found = plus.single_label(x, [], classes, torch.full_like(y, -1), joint=joint)
    assert right(found, z) > 0.85
    assert found.zero_shot_weight == 3.0  # nothing to fit it to


@pytest.mark.parametrize("case", ["duplicates", "one class", "no text"])
def test_odd_towers_stay_finite(case):
    x, text, classes, y, _ = made_up(60)
    pictures, prompts = unit_rows(60, 6, 0), unit_rows(4, 6, 1)
    if case == "duplicates":
        pictures = pictures[:1].repeat(60, 1)
    if case == "one class":
        y, classes, prompts = torch.zeros_like(y), classes[:1], prompts[:1]
    texts = [] if case == "no text" else [text]
    joint = plus.joint_evidence(pictures, prompts, [torch.zeros(60, 6) for _ in texts])
    found = plus.single_label(x, texts, classes, y, joint=joint)
    assert found.q.isfinite().all()
    assert found.q.sum(1).tolist() == pytest.approx([1.0] * 60, abs=1e-4)


def test_towers_measured_on_some_samples_say_the_same_of_each():
    pictures, prompts, text = unit_rows(30, 6, 0), unit_rows(4, 6, 1), unit_rows(30, 6, 2)
    space = plus.Towers.measured(pictures, prompts, [text])
    whole, part = space(pictures, [text]), space(pictures[:7], [text[:7]])
    for all_of_them, some in zip(whole, part, strict=True):
        assert torch.allclose(all_of_them[:7], some)


def test_others_are_judged_with_towers_too():
    x, text, classes, y, z, (shown, told) = crawl(3)
    joint = towers(shown, told)
    found = plus.single_label(x, [text], classes, y, joint=joint)
    again = found.of(x, [text], y, joint=joint)
    assert (again.q.argmax(1) == found.q.argmax(1)).float().mean() > 0.95
    blind = plus.single_label(x, [text], classes, torch.full_like(y, -1), joint=joint, rounds=1)
    unseen = blind.of(x, [text], torch.full_like(y, -1), joint=joint)
    assert right(unseen, z) > right(blind, z) - 0.03
