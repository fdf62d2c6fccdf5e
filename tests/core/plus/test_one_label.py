"""One label: the posterior on made-up crawls."""

import pytest
import torch
from torch.nn.functional import normalize

from capro.core import plus
from capro.core.label_rule import LabelDecision
from capro.core.plus.one_label import _fields
from tests.core.plus.cases import made_up


def test_first_none_is_far_or_of_another_sense():
    classes, senses = torch.eye(4)[:2], torch.eye(4)[2:3]
    near = normalize(torch.tensor([[1.0, 0.1, 0, 0]]), dim=1).repeat(38, 1)
    t = torch.cat([near, torch.eye(4)[2:3], torch.eye(4)[3:4], torch.zeros(1, 4)])
    word = torch.zeros(41, dtype=torch.int64)
    field = _fields([t], classes, word, senses, torch.tensor([0]))[0]
    found = plus.first_none(field, share=0.05)
    assert found.nonzero()[:, 0].tolist() == [38, 39]  # not the missing text


def test_labels_are_mended_and_errors_found():
    x, text, classes, y, z = made_up(600, 4, seed=1)
    anchors = (text @ classes.T).max(1)[0] > 0.8
    found = plus.single_label(x, [text], classes, y, anchors=anchors)
    label, decision, _ = plus.decide(found.q, y, anchors)
    assert (y == z).float().mean() < 0.85
    assert (label == z).float().mean() > 0.93
    assert ((decision == LabelDecision.RELABEL) & (y != z)).sum() > 0.8 * (y != z).sum()
    assert found.q.sum(1).tolist() == pytest.approx([1.0] * 600, abs=1e-4)


def test_none_of_these_is_found():
    x, text, classes, y, z = made_up(600, 4, seed=2, noise=0.1, none=0.15, missing=0.1)
    found = plus.single_label(x, [text], classes, y, anchors=(text @ classes.T).max(1)[0] > 0.8)
    dropped = found.q.argmax(1) == 4
    assert (z[dropped] == 4).float().mean() > 0.8
    assert dropped[z == 4].float().mean() > 0.6


def test_an_anchor_can_lose_its_label():
    x, text, classes, y, z = made_up(400, 4, seed=3, noise=0.3)
    anchors = torch.ones(400, dtype=torch.bool)
    label = plus.decide(plus.single_label(x, [text], classes, y, anchors=anchors).q, y, anchors).labels
    assert (label != y)[anchors & (y != z)].float().mean() > 0.7


def test_no_label_at_all():
    x, text, classes, _, z = made_up(500, 4, seed=4)
    found = plus.single_label(x, [text], classes, torch.full((500,), -1))
    assert (found.q.argmax(1) == z).float().mean() > 0.85


def test_no_text_at_all():
    x, _, classes, y, z = made_up(300, 4, seed=5)
    for texts in ([], [torch.zeros(300, 12)]):
        found = plus.single_label(x, texts, classes, y)
        assert found.q.isfinite().all()
        assert (found.q.argmax(1) == z).float().mean() > (y == z).float().mean() - 0.02


def test_nothing_known_stays_finite():
    x, *_ = made_up(40)
    found = plus.single_label(x, [], torch.eye(12)[:3], torch.full((40,), -1))
    assert found.q.isfinite().all()


@pytest.mark.parametrize("case", ["empty class", "one class", "two classes", "duplicates", "no anchors"])
def test_odd_sets(case):
    x, text, classes, y, _ = made_up(120, 2 if case == "two classes" else 4, seed=6)
    anchors = torch.zeros(120, dtype=torch.bool)
    anchors[:60] = case != "no anchors"
    if case == "empty class":
        y = torch.where(y == 3, 0, y)
    if case == "one class":
        y = torch.zeros_like(y)
    if case == "duplicates":
        x, text, y = x[:1].repeat(120, 1), text[:1].repeat(120, 1), y[:1].repeat(120)
    found = plus.single_label(x, [text], classes, y, anchors=anchors)
    assert found.q.shape == (120, len(classes) + 1)
    assert found.q.isfinite().all()
    assert found.q.sum(1).tolist() == pytest.approx([1.0] * 120, abs=1e-4)
    if case == "duplicates":
        assert found.q.std(0).max() < 0.1


def test_seeds_repeat():
    x, text, classes, y, _ = made_up(100)
    one, two = (plus.single_label(x, [text], classes, y, rounds=2, seed=7).q for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("start", ["anchors", "no anchors"])
def test_samples_outside_of_the_fit_are_judged_nearly_as_well(start):
    x, text, classes, y, z = made_up(1200, 4, seed=5, noise=0.3, none=0.1)
    anchors = (text @ classes.T).max(1)[0] > 0.8 if start == "anchors" else None
    fit = slice(0, 800)
    found = plus.single_label(
        x[fit], [text[fit]], classes, y[fit], anchors=None if anchors is None else anchors[fit]
    )
    seen, unseen = (found.of(x[part], [text[part]], y[part]) for part in (fit, slice(800, None)))
    right = (unseen.q.argmax(1) == z[800:]).float().mean()
    assert right > (found.q.argmax(1) == z[fit]).float().mean() - 0.04
    assert right > (y[800:] == z[800:]).float().mean() + 0.1
    assert (seen.q.argmax(1) == found.q.argmax(1)).float().mean() > 0.97
    assert (seen.words - found.words).exp().sub(1).abs().median() < 0.2


def test_judging_others_goes_row_by_row_and_a_person_is_right():
    x, text, classes, y, _ = made_up(300, 3, seed=6)
    found = plus.single_label(x, [text], classes, y, rounds=2)
    known = torch.full((300, 4), torch.nan)
    known[7] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    whole = found.of(x, [text], y, known=known)
    assert whole.q[7].tolist() == [0, 0, 1, 0]
    blocks = [found.of(x[p], [text[p]], y[p], known=known[p]) for p in (slice(0, 100), slice(100, 300))]
    for name in plus.Beliefs._fields:
        parts = torch.cat([getattr(block, name) for block in blocks])
        assert torch.allclose(parts, getattr(whole, name), atol=1e-5)


def test_few_anchors_or_nearly_all_samples_as_anchors_are_no_start():
    x, text, classes, y, z = made_up(240, 8, seed=6, noise=0.2)
    free = plus.single_label(x, [text], classes, y).q
    for anchors in (torch.arange(240) < 8, torch.ones(240, dtype=torch.bool)):
        found = plus.single_label(x, [text], classes, y, anchors=anchors).q
        assert torch.equal(found, free)
    assert (free.argmax(1) == z).float().mean() > (y == z).float().mean() + 0.05


def test_anchors_that_are_a_choice_are_a_start():
    x, text, classes, y, _ = made_up(400, 4, seed=6, noise=0.2)
    chosen = torch.arange(400) < 80
    assert not torch.equal(
        plus.single_label(x, [text], classes, y, anchors=chosen).q, plus.single_label(x, [text], classes, y).q
    )
