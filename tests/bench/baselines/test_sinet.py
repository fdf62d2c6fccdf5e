"""SINet: graphs, agreement and weights against slow references, and what texts are worth to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.bench.baselines import sinet
from capro.graph.neighbors import unit_rows
from capro.pipeline.artefacts import TEXTS
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
    found = sinet.prototypes(v, work.artefacts[TEXTS.file], work.truth, CLASSES)
    return sinet.sample_weights(v, found, work.truth, tau=0.2)


def test_it_beats_vanilla_where_a_name_has_two_meanings() -> None:
    work = TwoMeanings()
    vanilla, made = work.accuracy(work.step1()), work.accuracy(sinet.learn(work))
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
    np.testing.assert_allclose(sinet.agreement(graph), slow / slow.sum(), atol=1e-3)


def test_agreement_of_graphs_without_edges() -> None:
    np.testing.assert_allclose(sinet.agreement(np.zeros((3, 3), np.float32)), 1 / 3)
    np.testing.assert_allclose(sinet.agreement(np.zeros((1, 1), np.float32)), 1)


def test_prototypes_and_weights_equal_loops() -> None:
    rng = np.random.default_rng(3)
    labels = np.array([0, 0, 0, 1, 1])
    v, s = unit_rows(rng.normal(size=(5, 4))), unit_rows(rng.normal(size=(5, 3)))
    s[4] = 0
    found = sinet.prototypes(v, s, labels, 3)
    for c, rows in ((0, [0, 1, 2]), (1, [3, 4])):
        graph = np.zeros((len(rows), len(rows)))
        for a, i in enumerate(rows):
            for b, j in enumerate(rows):
                if i != j:
                    graph[a, b] = (max(0.0, float(v[i] @ v[j])) + max(0.0, float(s[i] @ s[j]))) / 2
        e = sinet.agreement(graph.astype(np.float32))
        mean = sum(e[a] * v[i] for a, i in enumerate(rows))
        np.testing.assert_allclose(found[c], mean / np.linalg.norm(mean), atol=1e-5)
    assert not found[2].any()  # a class without samples
    beliefs = []
    for i in range(5):
        powers = [math.exp(float(v[i] @ found[c]) / 0.2) for c in range(3)]
        beliefs.append(powers[labels[i]] / sum(powers))
    slow = np.array(beliefs) / np.mean(beliefs)
    np.testing.assert_allclose(sinet.sample_weights(v, found, labels, tau=0.2), slow, rtol=1e-4)


def test_a_large_class_has_a_prototype_of_some_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinet, "LARGEST", 3)
    v = unit_rows(np.random.default_rng(0).normal(size=(7, WIDTH)))
    some = np.array([0, 3, 6])
    none = np.zeros((7, 2), np.float32)
    wanted = sinet.agreement(sinet.relations(v[some]) / 2) @ v[some]
    found = sinet.prototypes(v, none, np.zeros(7, np.int64), 1)[0]
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=1e-5)
