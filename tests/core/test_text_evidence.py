"""The texts' say in the label rule against slow references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from capro.core.label_rule import FITTED_ON, RIDGE, TextEvidence


def made(n: int = 300, c: int = 4, noise: float = 0.5, seed: int = 0):
    """Texts near the class texts of their labels."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(c, 8)).astype(np.float32)
    labels = rng.integers(0, c, n)
    texts = prototypes[labels] + noise * rng.normal(size=(n, 8)) * np.sqrt(8)
    return texts.astype(np.float32), prototypes, labels


def slow_belief(text, prototypes, tau, bias):
    if not text.any():
        return np.zeros(len(prototypes))
    cosines = [float(text @ p) / float(np.linalg.norm(text)) / float(np.linalg.norm(p)) for p in prototypes]
    weights = [np.exp(cosine / tau + float(b)) for cosine, b in zip(cosines, bias, strict=True)]
    return np.array(weights) / sum(weights)


def test_belief_is_a_softmax_of_cosines_and_zero_without_text():
    texts, prototypes, labels = made()
    texts[7] = 0
    witness = TextEvidence.fitted(texts, prototypes, labels)
    rows = np.array([3, 7, 200])
    slow = [slow_belief(texts[row], prototypes, witness.tau, witness.bias) for row in rows]
    np.testing.assert_allclose(witness.of(rows).numpy(), slow, atol=1e-5)


def test_the_fit_is_scipys():
    texts, prototypes, labels = made()
    texts[:20] = 0  # missing texts say nothing about it
    labels[20:40] = -1  # nor do missing labels
    fitted = TextEvidence.fitted(texts, prototypes, labels)

    def unlikely(x):
        beliefs = [slow_belief(texts[i], prototypes, 1 / x[0], x[1:])[labels[i]] for i in range(40, 300)]
        return -np.log(beliefs).mean() + RIDGE * np.mean(x[1:] ** 2)

    best = minimize(unlikely, np.array([5.0, 0, 0, 0, 0]), method="L-BFGS-B").x
    assert 1 / fitted.tau == pytest.approx(best[0], rel=0.01)
    np.testing.assert_allclose(fitted.bias.numpy(), best[1:], atol=0.02)


def test_texts_that_do_not_fit_the_labels_are_hardly_heard():
    texts, prototypes, labels = made()
    shuffled = np.random.default_rng(1).permutation(labels)
    useful = TextEvidence.fitted(texts, prototypes, labels)
    useless = TextEvidence.fitted(texts, prototypes, shuffled)
    everyone = np.arange(len(texts))
    assert useless.of(everyone).max() < 0.4
    assert useful.of(everyone).max(dim=1).values.mean() > 0.6


def test_texts_that_contradict_the_labels_say_nothing():
    texts, prototypes, labels = made(noise=0.1)
    liars = TextEvidence.fitted(-texts, prototypes, labels)
    assert liars.tau == np.inf
    np.testing.assert_allclose(liars.of(np.arange(5)).numpy(), 1 / 4)


def test_a_class_text_that_is_too_near_to_everyone_is_mended():
    texts, prototypes, labels = made(noise=0.3)
    prototypes[1:] += 2 * prototypes[0]  # three class texts that speak of the first class, too
    plain = replace(TextEvidence.fitted(texts, prototypes, labels), bias=torch.zeros(4))
    mended = TextEvidence.fitted(texts, prototypes, labels)
    everyone = np.arange(len(texts))
    right = [(w.of(everyone).argmax(dim=1).numpy() == labels).mean() for w in (plain, mended)]
    assert right[1] > right[0] + 0.02


@pytest.mark.parametrize("gone", ["texts", "labels"])
def test_without_texts_or_labels_there_is_nothing_to_fit(gone):
    texts, prototypes, labels = made(n=5)
    texts, labels = (texts * 0, labels) if gone == "texts" else (texts, labels * 0 - 1)
    assert TextEvidence.fitted(texts, prototypes, labels).tau == np.inf


def test_a_class_without_samples_keeps_the_fit_finite():
    texts, prototypes, labels = made()
    labels[labels == 2] = -1
    witness = TextEvidence.fitted(texts, prototypes, labels)
    assert witness.bias.isfinite().all()
    assert witness.of(np.arange(300))[:, 2].mean() < 0.02


def test_a_large_set_is_fitted_on_a_part_of_it():
    texts, prototypes, labels = made(n=FITTED_ON + 500)
    asked = []

    class Counted(np.ndarray):
        def __getitem__(self, key):
            asked.append(np.size(key))
            return np.asarray(super().__getitem__(key))

    whole = TextEvidence.fitted(texts[:FITTED_ON], prototypes, labels[:FITTED_ON]).tau
    found = TextEvidence.fitted(texts.view(Counted), prototypes, labels)
    assert asked == [FITTED_ON]
    assert found.tau == pytest.approx(whole, rel=0.05)


@given(st.integers(0, 100), st.floats(0.05, 3))
def test_beliefs_do_not_depend_on_the_length_of_texts(seed, factor):
    texts, prototypes, labels = made(n=20, seed=seed)
    a = TextEvidence.fitted(texts, prototypes, labels)
    b = TextEvidence.fitted(texts * np.float32(factor), prototypes, labels)
    rows = np.arange(20)
    torch.testing.assert_close(a.of(rows), b.of(rows), atol=1e-3, rtol=1e-3)
