"""SINet and VSGraph: graphs against loops, and that they help where labels are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from capro.bench.baselines import graphs
from capro.graph.neighbors import unit_rows
from capro.pipeline.artefacts import CLASS_TEXTS, TEXTS, VISUAL
from tests.bench.baselines.toy_work import CLASSES, WIDTH, ToyWork, separation

MEANINGS = 8


class TwoMeanings(ToyWork):
    """Every class's pictures show two things, each as often; the texts of the right one agree, the others' do not.

    By the pictures alone nobody can tell which of the two is meant.
    """

    def __init__(self, *, texts: bool = True) -> None:
        super().__init__(n=320, noise=0.0)
        rng = np.random.default_rng(1)
        right = rng.random(320) < 0.5
        wrong = np.flatnonzero(~right)
        self.v[wrong, :CLASSES] = rng.normal(size=(len(wrong), CLASSES))
        self.v[wrong, CLASSES + self.truth[wrong]] += 4  # a cluster of its own: what else the word means
        shown = (self.truth + 1) % CLASSES
        self.v[wrong, shown[wrong]] += 3  # and it looks like the next class
        self.right = right
        s = rng.normal(size=(320, MEANINGS)).astype(np.float32)
        if texts:
            s[right] += 6 * np.eye(MEANINGS, dtype=np.float32)[self.truth[right]]
        s[::9] = 0
        self.artefacts[TEXTS.file] = unit_rows(s)


def weights(work: ToyWork) -> np.ndarray:
    v = unit_rows(work.v - work.v.mean(axis=0))
    found = graphs.prototypes(v, work.artefacts[TEXTS.file], work.truth, CLASSES)
    return graphs.sample_weights(v, found, work.truth, tau=0.2)


def test_it_beats_vanilla_where_a_name_has_two_meanings() -> None:
    work = TwoMeanings()
    vanilla, made = work.accuracy(work.step1()), work.accuracy(graphs.sinet(work))
    assert made > vanilla + 0.03


def test_the_texts_tell_which_meaning_is_meant() -> None:
    with_texts, without = TwoMeanings(), TwoMeanings(texts=False)
    assert separation(weights(with_texts), with_texts.right) > 0.9
    assert (
        separation(weights(with_texts), with_texts.right) > separation(weights(without), without.right) + 0.1
    )


@given(st.integers(2, 8), st.integers(0, 99))
def test_agreement_is_the_principal_eigenvector(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = rng.uniform(0.1, 1, (n, n)).astype(np.float32)
    graph = graph + graph.T
    np.fill_diagonal(graph, 0)
    values, vectors = np.linalg.eigh(graph)
    slow = np.abs(vectors[:, values.argmax()])
    np.testing.assert_allclose(graphs.agreement(graph), slow / slow.sum(), atol=1e-3)


def test_agreement_of_graphs_without_edges() -> None:
    np.testing.assert_allclose(graphs.agreement(np.zeros((3, 3), np.float32)), 1 / 3)
    np.testing.assert_allclose(graphs.agreement(np.zeros((1, 1), np.float32)), 1)


def test_prototypes_and_weights_equal_loops() -> None:
    rng = np.random.default_rng(3)
    labels = np.array([0, 0, 0, 1, 1])
    v, s = unit_rows(rng.normal(size=(5, 4))), unit_rows(rng.normal(size=(5, 3)))
    s[4] = 0
    found = graphs.prototypes(v, s, labels, 3)
    for c, rows in ((0, [0, 1, 2]), (1, [3, 4])):
        graph = np.zeros((len(rows), len(rows)))
        for a, i in enumerate(rows):
            for b, j in enumerate(rows):
                if i != j:
                    graph[a, b] = (max(0.0, float(v[i] @ v[j])) + max(0.0, float(s[i] @ s[j]))) / 2
        e = graphs.agreement(graph.astype(np.float32))
        mean = sum(e[a] * v[i] for a, i in enumerate(rows))
        np.testing.assert_allclose(found[c], mean / np.linalg.norm(mean), atol=1e-5)
    assert not found[2].any()  # a class without samples
    beliefs = []
    for i in range(5):
        powers = [math.exp(float(v[i] @ found[c]) / 0.2) for c in range(3)]
        beliefs.append(powers[labels[i]] / sum(powers))
    slow = np.array(beliefs) / np.mean(beliefs)
    np.testing.assert_allclose(graphs.sample_weights(v, found, labels, tau=0.2), slow, rtol=1e-4)


def test_a_large_class_has_a_prototype_of_some_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LARGEST", 3)
    v = unit_rows(np.random.default_rng(0).normal(size=(7, WIDTH)))
    some = np.array([0, 3, 6])
    none = np.zeros((7, 2), np.float32)
    wanted = graphs.agreement(graphs.relations(v[some]) / 2) @ v[some]
    found = graphs.prototypes(v, none, np.zeros(7, np.int64), 1)[0]
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=1e-5)


@pytest.fixture(autouse=True)
def _fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the graph network's steps is enough for the toy."""
    monkeypatch.setattr(graphs, "GRAPH_STEPS", 500)


def with_texts(*, several: bool = False, texts: float = 0.5) -> ToyWork:
    """A share of the samples have a text, near to that of the class that they really show."""
    work = ToyWork(several=several, overrides=("match.k=5",))
    rng = np.random.default_rng(3)
    of_class = np.eye(6, dtype=np.float32)[:CLASSES]
    own = of_class[work.truth] + 0.2 * rng.normal(size=(len(work.truth), 6)).astype(np.float32)
    own[rng.random(len(own)) >= texts] = 0
    work.artefacts |= {TEXTS.file: own, CLASS_TEXTS.file: of_class, VISUAL.file: work.v}
    return work


@pytest.mark.parametrize("several", [False, True])
def test_it_beats_vanilla_where_two_fifths_are_wrong(several: bool) -> None:
    work = with_texts(several=several)
    made = graphs.vsgraph(work)
    assert work.accuracy(made) > work.accuracy(work.step1()) + 0.1
    assert made[1]["changed"] > 0.2


def test_it_gives_more_true_labels_than_the_web_and_than_step_1() -> None:
    work = with_texts()
    net = work.step1()
    found, seeds = graphs.corrected(work, net)
    labels = (
        work.training.labels,
        work.believed(net, work.training.positions).argmax(dim=1),
        found.argmax(dim=1),
    )
    shares = [float((each.numpy() == work.truth).mean()) for each in labels]
    assert shares[2] > max(shares[:2]) + 0.1
    assert work.right[seeds.numpy()].mean() > 0.9  # the seeds' texts mean their class
    assert [int((work.training.labels[seeds] == c).sum()) for c in range(CLASSES)] == [10] * CLASSES
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(found)))


def test_the_classifiers_own_belief_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the graph network has no opinion, step 1's classifier decides; where it is sure, the graph network."""
    work = with_texts()
    net = work.step1()
    gnn = torch.full((len(work.truth), CLASSES), 1 / CLASSES)
    monkeypatch.setattr(graphs, "graph_beliefs", lambda *_, **__: gnn)
    cnn = work.believed(net, work.training.positions).argmax(dim=1)
    assert torch.equal(graphs.corrected(work, net)[0].argmax(dim=1), cnn)
    gnn = torch.eye(CLASSES)[torch.full((len(work.truth),), 2)] * 0.8
    assert torch.equal(graphs.corrected(work, net)[0], gnn / 0.8)


def test_without_any_text_labels_stay() -> None:
    work = with_texts(texts=0.0)
    found, seeds = graphs.corrected(work, work.net())
    assert torch.equal(found, torch.eye(CLASSES)[work.training.labels])
    assert not seeds.any()


def test_means_are_loops_over_neighbours() -> None:
    rng = np.random.default_rng(0)
    weights = np.triu(rng.random((7, 7)) * (rng.random((7, 7)) < 0.4), 1)
    weights = (weights + weights.T).astype(np.float32)
    weights[3] = weights[:, 3] = 0  # alone
    x = rng.normal(size=(7, 5)).astype(np.float32)
    slow = np.zeros((7, 5))
    for i in range(7):
        for j in range(7):
            if weights[i, j]:
                slow[i] += weights[i, j] / sum(weights[i].tolist()) * x[j]
    np.testing.assert_allclose(graphs.mean_operator(csr_array(weights)) @ x, slow, atol=1e-6)
    assert not slow[3].any()


def test_the_network_carries_seeds_labels_along_edges() -> None:
    """Samples of equal features: only their neighbours say to which group they belong."""
    n = 8
    weights = np.zeros((n, n), dtype=np.float32)
    for i in (1, 2, 3):  # 1, 2, 3 are neighbours of 0; 5, 6, 7 of 4
        weights[0, i] = weights[i, 0] = weights[4, i + 4] = weights[i + 4, 4] = 1
    labels, seeds = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0]), torch.zeros(n, dtype=torch.bool)
    seeds[[1, 2, 5, 6]] = True
    features = np.ones((n, 2), dtype=np.float32)
    features[0, 0], features[4, 0] = 9, -9
    graph = csr_array(weights)
    beliefs = graphs.graph_beliefs(features, graph, labels, seeds, 2, work=ToyWork(n=n))
    assert beliefs[[3, 7]].argmax(dim=1).tolist() == [0, 1]  # no seeds, and labelled otherwise
    alone = graphs.graph_beliefs(features, csr_array((n, n)), labels, seeds, 2, work=ToyWork(n=n))
    torch.testing.assert_close(alone[3], alone[7])  # without edges they look the same


def test_soft_labels_follow_both_beliefs() -> None:
    gnn = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.6, 0.0], [0.1, 0.2, 0.4], [0.1, 0.6, 0.0]])
    cnn = torch.tensor([[0.2, 0.8, 0.0], [0.7, 0.3, 0.0], [0.0, 0.2, 0.8], [0.0, 0.1, 0.9]])
    labels, seeds = torch.tensor([1, 0, 0, 2]), torch.tensor([True, True, False, False])
    # the graph network is sure of the first; class 2 has no seed: nobody gets it, and who has it keeps it
    expected = torch.tensor([[0.9, 0.1, 0], [0.5, 0.5, 0], [0.2, 0.8, 0], [0, 0, 1]])
    torch.testing.assert_close(graphs.refined(labels, seeds, gnn, cnn), expected)
    several = torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    some = torch.zeros_like(several, dtype=torch.bool)
    some[0, 1] = some[1, 0] = True
    expected = torch.tensor([[0.9, 0.1, 1], [0.45, 0.45, 0], [0.05, 0.2, 0], [0.05, 0.35, 0]])
    torch.testing.assert_close(graphs.refined(several, some, gnn, cnn), expected)
