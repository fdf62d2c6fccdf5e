"""One label or several behind one set of names."""

from __future__ import annotations

import pytest
import torch

from capro.core.label_rule import LabelDecision, PairDecision
from capro.core.losses import classification_loss_multi_label, positive_weights
from capro.models.heads import Heads
from capro.train.tasks import MultiLabelTask, SingleLabelTask
from tests.train.toys import Toy

SINGLE = SingleLabelTask(3, 0.1)
MULTI = MultiLabelTask(2, 0.1, torch.ones(2))


def test_names_follow_the_numbers_of_the_decisions():
    assert [name.upper() for name in SINGLE.names] == [each.name for each in LabelDecision]
    assert [name.upper() for name in MULTI.names] == [each.name for each in PairDecision]


def test_who_is_out():
    assert SINGLE.out(torch.tensor([0, -1, 2])).tolist() == [False, True, False]
    assert MULTI.out(torch.tensor([[0, 0], [-1, -1], [1, 0]])).tolist() == [False, True, False]


def test_probabilities():
    logits = torch.tensor([[2.0, 0.0, 0.0]])
    assert SINGLE.probabilities(logits).sum() == pytest.approx(1)
    assert MULTI.probabilities(logits)[0, 1] == 0.5


def test_projection_of_several_labels_is_reconstruction_and_the_cross_entropy_of_each_class():
    out = Heads(4, 3, 2, tau=0.1, multi_label=True)(torch.randn(5, 4))
    labels, task = torch.tensor([[1, 0]] * 4 + [[-1, -1]]), MultiLabelTask(2, 0.1, torch.tensor([2.0, 3.0]))
    auxiliary = classification_loss_multi_label(out.q, labels, pos_weight=task.pos_weight)
    wanted = (out.v_rec - out.v).square().mean() + auxiliary
    torch.testing.assert_close(task.prj(out, labels, None, None), wanted)


def test_labels_without_the_rule_are_kept():
    y, anchored = torch.tensor([0, 1, -1]), torch.tensor([True, False, False])
    assert SINGLE.unchanged(y, anchored, protect=True).tolist() == [
        LabelDecision.ANCHOR, LabelDecision.KEEP, LabelDecision.DROP,
    ]  # fmt: skip
    assert SINGLE.unchanged(y, anchored, protect=False).tolist() == [
        LabelDecision.KEEP, LabelDecision.KEEP, LabelDecision.DROP,
    ]  # fmt: skip
    several = torch.tensor([[1, 0], [0, 0]])
    kept = MULTI.unchanged(several, several > 0, protect=True)
    assert (kept == PairDecision.KEEP).all()


def test_shares_of_single_labels_are_of_samples():
    decisions = torch.tensor([0, 1, 1, 2, 3, 3, 3, 3])
    shares = SINGLE.shares(decisions, torch.zeros(8).long(), torch.zeros(8).long())
    assert shares == {"anchor": 1 / 8, "keep": 2 / 8, "relabel": 1 / 8, "drop": 4 / 8}


def test_shares_of_several_labels_are_of_labels_not_of_all_pairs():
    """Of the labels before or after; the many classes that nobody claims say nothing."""
    before = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    after = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [-1, -1, -1, -1]])
    decisions = torch.tensor([[0, 2, 1, 0], [0] * 4, [0] * 4, [2, 0, 0, 0]])
    task = MultiLabelTask(4, 0.1, torch.ones(4))
    assert task.shares(decisions, before, after) == {
        "keep": 2 / 5, "add": 1 / 5, "remove": 2 / 5, "drop": 1 / 4,
    }  # fmt: skip
    nothing = torch.zeros(2, 4).long()
    assert set(task.shares(nothing, nothing, nothing).values()) == {0.0}


def test_anchors_alone_give_the_first_prototypes():
    z = torch.nn.functional.normalize(torch.randn(6, 4), dim=1)
    y, anchored = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([1, 1, 1, 0, 0, 0]).bool()
    sums = SINGLE.sums(z, y, anchored)
    assert torch.allclose(sums[0], z[0] + z[1])
    assert torch.allclose(sums[1], z[2])
    assert (sums[2] == 0).all()


def test_multi_label_prototypes_of_anchors_by_hand():
    toy = Toy(multi=True)
    torch.manual_seed(0)
    heads = Heads(8, 6, 3, tau=0.1, multi_label=True)
    z = torch.nn.functional.normalize(torch.randn(toy.n, 6), dim=1)
    z_c = heads.subspaces(z)
    sums = toy.task.sums(z_c, toy.labels, toy.anchored)
    for c in range(3):
        positive = sum(z_c[i, c] for i in range(toy.n) if toy.anchored[i, c])
        negative = sum(z_c[i, c] for i in range(toy.n) if toy.anchored[i].any() and not toy.labels[i, c])
        assert torch.allclose(sums[c, 1], positive, atol=1e-6)
        assert torch.allclose(sums[c, 0], negative, atol=1e-6)
    assert torch.equal(heads.compared(z), z_c)


def test_positive_weights_are_of_the_web_labels():
    toy = Toy(multi=True)
    counts = toy.labels.sum(dim=0)
    assert torch.allclose(toy.task.pos_weight, ((toy.n - counts) / counts).sqrt())
    assert torch.equal(toy.task.pos_weight, positive_weights(counts, toy.n))


def test_step_three_weighs_positives_by_its_own_power_and_the_cleaned_labels():
    toy = Toy(multi=True)
    labels = toy.labels.clone()
    labels[::4] = -1  # out
    clean = labels[(labels >= 0).all(dim=1)]
    positives = clean.sum(dim=0)
    for power in (0.0, 0.25, 1.0):
        slow = [((len(clean) - n) / n) ** power for n in positives.tolist()]
        found = toy.task.balanced(labels, power).pos_weight
        assert torch.allclose(found, torch.tensor(slow, dtype=found.dtype))
    assert torch.equal(toy.task.balanced(labels, None).pos_weight, toy.task.pos_weight)
