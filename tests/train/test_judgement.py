"""The offline pass against the rule applied by hand, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capro.core.kept_scores import KeptScores
from capro.core.label_rule import NULL, LabelDecision
from capro.errors import RunError
from capro.train.batches import EVAL_BATCH
from capro.train.judgement import Judged, judge_all
from tests.train.toys import TAU, Toy


def judged(toy: Toy, objective, rows: slice = slice(None)) -> Judged:
    return judge_all(
        toy.judge(), objective.net, objective.prototypes, toy.labels, toy.anchored, toy.inputs(),
        toy.positions, rows,
    )  # fmt: skip


def scores(found, name):
    return KeptScores(found.scores, name, 3)[:]


@pytest.mark.parametrize("policy", ["capro", "mopro"])
def test_verdicts_equal_the_rule_by_hand(policy):
    toy = Toy(n=40, settings={"policy": policy, "gamma": 0.55, "alpha": 0.3, "epochs": 2})
    objective = toy.objective()
    toy.fit(objective)
    found = judged(toy, objective)
    net = objective.net.eval()
    seen = set()
    for i in range(toy.n):
        with torch.no_grad():
            out = net(torch.from_numpy(toy.plain[i : i + 1])).query
        p = out.p.softmax(1)[0]
        r = (objective.prototypes @ out.z[0] / TAU).softmax(0)
        o = 0.3 * p + 0.7 * r
        y, anchor = int(toy.labels[i]), bool(toy.anchored[i])
        if anchor and policy == "capro":
            label, decision = y, LabelDecision.ANCHOR
        elif o.max() > 0.55:
            label = int(o.argmax())
            decision = LabelDecision.KEEP if label == y else LabelDecision.RELABEL
        elif o[y] > 1 / 3:
            label, decision = y, LabelDecision.KEEP
        else:
            label, decision = NULL, LabelDecision.DROP
        assert (found.labels[i], found.decisions[i]) == (label, decision)
        assert np.allclose(scores(found, "fused")[i], o, atol=1e-5)
        assert np.allclose(scores(found, "classifier")[i], p, atol=1e-5)
        assert np.allclose(scores(found, "similarity")[i], r, atol=1e-5)
        seen.add(decision)
    assert {LabelDecision.KEEP, LabelDecision.RELABEL} <= seen


def test_blocks_are_parts_of_the_whole(monkeypatch):
    monkeypatch.setattr("capro.train.batches.EVAL_BATCH", 8)
    toy = Toy(n=40, settings={"gamma": 0.55})
    objective = toy.objective()
    whole = judged(toy, objective)
    for rows in (slice(0, 16), slice(16, 40)):
        part = judged(toy, objective, rows)
        assert np.array_equal(part.labels, whole.labels[rows])
        assert np.array_equal(part.decisions, whole.decisions[rows])
        assert part.scores.tobytes() == whole.scores[rows].tobytes()


def test_the_pass_changes_nothing_and_needs_no_luck():
    """Eval mode, no augmentation: batch statistics stay, and twice is the same."""
    toy = Toy("full", n=12)
    objective = toy.objective()
    objective.net.train()
    before = {name: value.clone() for name, value in objective.net.state_dict().items()}
    first, second = judged(toy, objective), judged(toy, objective)
    assert np.array_equal(scores(first, "fused"), scores(second, "fused"))
    assert np.array_equal(first.labels, second.labels)
    after = objective.net.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_score_that_is_nan_is_an_error_with_the_sample():
    toy = Toy(n=12)
    objective = toy.objective()
    toy.plain[7] = np.nan
    with pytest.raises(RunError, match=r"fused score \(Eq. 6\): sample row 7 has nan as a score"):
        judged(toy, objective)


def test_blocks_keep_the_order():
    toy = Toy(n=2 * EVAL_BATCH + 3)
    objective = toy.objective()
    found = judged(toy, objective)
    with torch.no_grad():
        out = objective.net.eval()(torch.from_numpy(toy.plain)).query
    assert np.allclose(scores(found, "classifier"), out.p.softmax(1), atol=1e-5)
    assert found.labels.shape == (toy.n,)


def test_several_labels():
    toy = Toy(n=30, multi=True, settings={"gamma": 0.52, "epochs": 3, "lr": 0.3})
    objective = toy.objective()
    toy.fit(objective)
    found = judged(toy, objective)
    assert found.labels.shape == found.decisions.shape == (30, 3)
    web, o = toy.labels.numpy(), scores(found, "fused")
    anchored = toy.anchored.numpy()
    for i in range(30):
        row = [
            web[i, c] if anchored[i, c]
            else 1 if o[i, c] > 0.52 else 0 if 1 - o[i, c] > 0.52 else web[i, c]
            for c in range(3)
        ]  # fmt: skip
        if not any(row) and web[i].any():
            assert (found.labels[i] == NULL).all()
        else:
            assert found.labels[i].tolist() == row
    assert (found.labels[anchored] == 1).all()
