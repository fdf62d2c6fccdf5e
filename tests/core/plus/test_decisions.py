"""What follows from a posterior."""

import pytest
import torch
from hypothesis import given
from torch.nn.functional import one_hot

from capro.core import plus
from capro.core.label_rule import LabelDecision, PairDecision
from tests.core.plus.cases import FEW, SEEDS, distributions, generator


@given(SEEDS)
@FEW
def test_decisions_follow_the_posterior(seed):
    q, y = distributions(20, 4, seed), torch.randint(0, 3, (20,), generator=generator(seed))
    anchors = torch.rand(20, generator=generator(seed + 1)) < 0.3
    found = plus.decide(q, y, anchors, sure=0.5)
    for i in range(20):
        best, asked = int(q[i].argmax()), bool(q[i].max() < 0.5)
        label = int(q[i, :3].argmax()) if asked else -1 if best == 3 else best
        kept = LabelDecision.ANCHOR if anchors[i] else LabelDecision.KEEP
        wanted = LabelDecision.DROP if label < 0 else kept if label == y[i] else LabelDecision.RELABEL
        assert (int(found.labels[i]), int(found.decisions[i])) == (label, wanted)
        assert bool(found.ask[i]) == asked


@given(SEEDS)
@FEW
def test_pairs_are_decided_one_by_one(seed):
    q = torch.rand(12, 3, generator=generator(seed))
    y = (torch.rand(12, 3, generator=generator(seed + 1)) < 0.4).long()
    found = plus.decide_pairs(q, y)
    for i in range(12):
        now = [int(q[i, c] > 0.5) for c in range(3)]
        gone = bool(y[i].any()) and not any(now)
        assert found.labels[i].tolist() == ([-1] * 3 if gone else now)
        for c in range(3):
            change = now[c] - int(y[i, c])
            wanted = {1: PairDecision.ADD, 0: PairDecision.KEEP, -1: PairDecision.REMOVE}[change]
            assert int(found.decisions[i, c]) == wanted
            assert bool(found.ask[i, c]) == (abs(float(q[i, c]) - 0.5) < 0.1)


def test_diagnosis_names_what_is_wrong():
    y = torch.tensor([0] * 10 + [1] * 10)
    classes, anchors = torch.eye(2), torch.arange(20) < 5
    sure = one_hot(y, 3).float()
    assert plus.diagnose(sure, y, [torch.eye(2)[y]], classes, anchors=anchors) == []
    away = sure.clone()
    away[:4] = torch.tensor([0.0, 0.0, 1.0])
    (found,) = plus.diagnose(away, y, [torch.eye(2)[y]], classes, anchors=anchors)
    assert (found.kind, found.classes, found.share) == ("anchors", (0,), pytest.approx(0.8))
    assert found.rows == (0, 1, 2, 3)
    mixed = torch.tensor([0.5, 0.5, 0.0]).repeat(20, 1)
    assert [f.kind for f in plus.diagnose(mixed, y, [torch.eye(2)[y]], classes)] == ["one class"]
    swapped = torch.eye(2)[torch.where(y == 0, 1, y)]
    assert [(f.kind, f.classes) for f in plus.diagnose(sure, y, [swapped], classes)] == [("sense", (0,))]


def test_classes_are_compared_in_parts_as_all_at_once(monkeypatch):
    y, classes = torch.arange(42) % 7, torch.eye(7)
    pair = torch.tensor([3, 5, 2, 0, 4, 1, 6])[y]  # 0 with 3, 1 with 5
    q = (one_hot(y, 8) + one_hot(pair, 8)) / 2 + torch.rand(42, 8, generator=generator(0)) / 100
    whole = plus.diagnose(q, y, [classes[y]], classes)
    assert [f.classes for f in whole if f.kind == "one class"] == [(0, 3), (1, 5)]
    monkeypatch.setattr("capro.core.plus.decisions.CLASSES_AT_ONCE", 2)
    assert plus.diagnose(q, y, [classes[y]], classes) == whole
