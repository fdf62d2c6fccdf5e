"""Step 1, and heads on anchors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from capro.core.label_rule import NULL
from capro.train.objectives import WebLabels
from tests.train.toys import Toy, batches, one_rank


def test_step_one_equals_a_slow_reference_and_leaves_the_unlabelled_out():
    toy = Toy()
    labels = toy.labels.clone()
    labels[::3] = NULL
    objective = WebLabels(toy.net(), toy.task, labels, one_rank(), lambda_prj=0.5)
    objective.begin_epoch(0, resumed=False)
    for batch in batches(toy, 0, keys=False):
        y = labels[torch.from_numpy(batch.everyone)]
        terms = objective.terms(batch)
        with torch.no_grad():
            out = objective.net(batch.query).query
        part = y >= 0
        rec = ((out.v_rec - out.v) ** 2).mean()
        assert terms["cls"].item() == pytest.approx(float(F.cross_entropy(out.p[part], y[part])))
        aux = F.cross_entropy(out.q[part], y[part])
        assert terms["prj"].item() == pytest.approx(float(rec + aux), rel=1e-5)
    assert objective.weights == {"prj": 0.5}


def test_heads_on_anchors_leave_the_encoder():
    toy = Toy("full")
    net = toy.net()
    rows = torch.nonzero(toy.anchored).flatten()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    objective = WebLabels(net, toy.task, toy.labels[rows], one_rank(), lambda_prj=1.0, freeze=True)
    toy.fit(objective, positions=toy.positions[rows.numpy()])
    after = net.state_dict()
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"heads"}
    assert np.array_equal(rows.numpy(), np.flatnonzero(toy.anchored.numpy()))
