"""VSGraph: graph convolutions against loops over neighbours, which labels it gives, and what they gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from capro.bench.baselines import vsgraph
from capro.graph.smooth import smoothing_operator
from capro.run.artefacts import CLASS_TEXTS, TEXTS, VISUAL
from tests.bench.baselines.toy_work import CLASSES, ToyWork

CPU = torch.device("cpu")


def with_texts(*, several: bool = False, texts: float = 0.5) -> ToyWork:
    """A share of the samples have a text, near to that of the class that they really show."""
    work = ToyWork(several=several, overrides=("match.k=5", "match.top_k=12"))
    rng = np.random.default_rng(3)
    of_class = np.eye(6, dtype=np.float32)[:CLASSES]
    own = of_class[work.truth] + 0.2 * rng.normal(size=(len(work.truth), 6)).astype(np.float32)
    own[rng.random(len(own)) >= texts] = 0
    work.artefacts |= {TEXTS.file: own, CLASS_TEXTS.file: of_class, VISUAL.file: work.v}
    return work


@pytest.mark.parametrize("several", [False, True])
def test_it_beats_vanilla_where_two_fifths_are_wrong(several: bool) -> None:
    work = with_texts(several=several)
    made = vsgraph.learn(work)
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.1
    assert made[1]["changed"] > 0.2


def test_it_gives_more_true_labels_than_the_web_and_than_step_1() -> None:
    work = with_texts()
    net = work.step1()
    found, anchored = vsgraph.corrected(work, net)
    with torch.no_grad():
        cnn = net(torch.from_numpy(work.v)).query.p.argmax(dim=1)
    shares = [float((labels.numpy() == work.truth).mean()) for labels in (work.training.labels, cnn, found)]
    assert shares[2] > max(shares[:2]) + 0.1
    assert work.right[anchored.numpy()].mean() > 0.9  # the anchors' texts mean their class


def test_the_classifiers_own_belief_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the graph network has no opinion, step 1's classifier decides; where it is sure, the graph network."""
    work = with_texts()
    net = work.step1()
    with torch.no_grad():
        cnn = net(torch.from_numpy(work.v)).query.p.argmax(dim=1)
    gnn = torch.full((len(work.truth), CLASSES), 1 / CLASSES)
    monkeypatch.setattr(vsgraph, "graph_beliefs", lambda *_, **__: gnn)
    assert torch.equal(vsgraph.corrected(work, net)[0], cnn)
    gnn = torch.eye(CLASSES)[torch.full((len(work.truth),), 2)] * 3
    assert (vsgraph.corrected(work, net)[0] == 2).all()


def test_without_any_text_labels_stay() -> None:
    work = with_texts(texts=0.0)
    found, anchored = vsgraph.corrected(work, work.net())
    assert torch.equal(found, work.training.labels)
    assert not anchored.any()


def test_graph_convolutions_are_loops_over_neighbours() -> None:
    rng = np.random.default_rng(0)
    weights = np.triu(rng.random((7, 7)) * (rng.random((7, 7)) < 0.4), 1)
    weights = (weights + weights.T).astype(np.float32)
    x = torch.from_numpy(rng.normal(size=(7, 5)).astype(np.float32))
    degree = [1 + sum(row) for row in weights.tolist()]

    def spread(values: torch.Tensor) -> torch.Tensor:
        rows = []
        for i in range(7):
            row = values[i] / degree[i]  # the self-loop
            for j in range(7):
                row = row + weights[i, j] / math.sqrt(degree[i] * degree[j]) * values[j]
            rows.append(row)
        return torch.stack(rows)

    operator = vsgraph.sparse_tensor(smoothing_operator(csr_array(weights)), CPU)
    net = vsgraph.GraphNetwork(operator, 5, 3).eval()
    first, second = net.first, net.second
    slow = spread((spread(x) @ first.weight.T + first.bias).relu() @ second.weight.T + second.bias)
    torch.testing.assert_close(net(torch.sparse.mm(operator, x)), slow, atol=1e-5, rtol=1e-4)


def test_the_network_carries_anchors_labels_along_edges() -> None:
    """Two chains of nearly equal features: only the graph says which of them a sample belongs to."""
    n = 12
    weights = np.zeros((n, n), dtype=np.float32)
    for i in [*range(5), *range(6, 11)]:
        weights[i, i + 1] = weights[i + 1, i] = 1
    labels, anchored = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]), torch.zeros(n, dtype=torch.bool)
    anchored[[0, 1, 6, 7]] = True
    features = np.ones((n, 2), dtype=np.float32)
    features[0, 0], features[6, 0] = 9, -9  # the first of each chain
    beliefs = vsgraph.graph_beliefs(features, csr_array(weights), labels, anchored, 2, work=ToyWork(n=n))
    assert beliefs[:3].argmax(dim=1).tolist() == [0, 0, 0]  # the third is no anchor, and labelled otherwise
    assert beliefs[6:9].argmax(dim=1).tolist() == [1, 1, 1]
    alone = vsgraph.graph_beliefs(features, csr_array((n, n)), labels, anchored, 2, work=ToyWork(n=n))
    torch.testing.assert_close(alone[2], alone[8])  # without edges they look the same


def test_final_labels_follow_the_mean_of_both_beliefs() -> None:
    gnn = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.1, 0.2, 0.7], [0.1, 0.9, 0.0]])
    cnn = torch.tensor([[0.2, 0.8, 0.0], [0.7, 0.3, 0.0], [0.0, 0.1, 0.9], [0.0, 0.1, 0.9]])
    labels, anchored = torch.tensor([1, 0, 0, 2]), torch.tensor([True, True, False, False])
    # class 2 has no anchor: nobody gets it, and who has it keeps it
    assert vsgraph.final_labels(labels, anchored, gnn, cnn).tolist() == [0, 1, 1, 2]
    several = torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    some = torch.zeros_like(several, dtype=torch.bool)
    some[0, 1] = some[1, 0] = True
    expected = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert vsgraph.final_labels(several, some, gnn, cnn).tolist() == expected
