"""Multimodal: phrases and context against slow references, and a problem where texts know more than labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capro.bench.baselines import multimodal
from capro.bench.baselines.multimodal import Joined, PhraseGenerator, phrase_bank
from capro.errors import DataError
from capro.graph.neighbors import unit_rows
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import TEXTS
from tests.bench.baselines.toy_work import CLASSES, WIDTH, ToyWork

WORDS = 12


def pictures(truth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each class looks in two opposite ways, so that no linear classifier knows it; (n, WIDTH), and which way."""
    way = rng.integers(0, 2, len(truth))
    sign = 2.0 * way - 1
    v = 0.5 * rng.normal(size=(len(truth), WIDTH))
    rows, pair = np.arange(len(truth)), 2 * (truth // 2)
    v[rows, pair] += 3 * sign
    v[rows, pair + 1] += 3 * sign * np.where(truth % 2, -1, 1)
    return v.astype(np.float32), 2 * truth + way


def with_texts(*, right: bool, several: bool = False) -> ToyWork:
    """Texts name what a picture looks like, or say nothing of it; labels are right."""
    work = ToyWork(noise=0.0, several=several)
    rng = np.random.default_rng(5)
    work.v, looks = pictures(work.truth, rng)
    s = 0.1 * rng.normal(size=(240, WORDS))
    s[:, : 2 * CLASSES] += np.eye(2 * CLASSES)[looks if right else rng.permutation(looks)]
    s[::7] = 0
    work.artefacts[TEXTS.file] = unit_rows(s)
    return work


def accuracy(net: Siamese | None) -> float:
    assert net is not None
    rng = np.random.default_rng(9)
    truth = rng.integers(0, CLASSES, 400)
    v, _ = pictures(truth, rng)
    with torch.no_grad():
        said = net.eval()(torch.from_numpy(v)).query.p.argmax(dim=1).numpy()
    return float((said == truth).mean())


@pytest.mark.parametrize("several", [False, True])
def test_context_that_texts_have_taught_helps_where_a_class_looks_in_several_ways(several: bool) -> None:
    work = with_texts(right=True, several=several)
    made = accuracy(multimodal.multimodal(work)[0])
    assert made > accuracy(work.step1()) + 0.2
    nothing = with_texts(right=False, several=several)
    assert made > accuracy(multimodal.multimodal(nothing)[0]) + 0.2


def generator() -> PhraseGenerator:
    torch.manual_seed(0)
    v = torch.randn(20, WIDTH)
    phrases = torch.from_numpy(unit_rows(np.random.default_rng(0).normal(size=(30, WORDS))))
    return PhraseGenerator(v, phrases, tau=0.2)


def test_a_context_is_the_weighted_mean_of_the_best_phrases() -> None:
    made, v = generator(), torch.randn(4, WIDTH)
    with torch.no_grad():
        found, logits = made(v), made.scores(v)
        for i in range(4):
            hidden = made.layers((v[i] - made.mean) / made.spread)
            cosines = [float(hidden @ phrase / hidden.norm()) for phrase in made.phrases]
            np.testing.assert_allclose(logits[i], np.array(cosines) / 0.2, atol=1e-4)
            best = sorted(range(30), key=lambda m: -cosines[m])[:10]
            powers = [np.exp(cosines[m] / 0.2) for m in best]
            mean = sum(p * made.phrases[m].numpy() for p, m in zip(powers, best, strict=True))
            np.testing.assert_allclose(found[i], mean / np.linalg.norm(mean), atol=1e-4)


def test_the_classifier_sees_features_and_the_other_halfs_context() -> None:
    made, v = [generator(), generator()], torch.randn(3, WIDTH)
    with torch.no_grad():
        made[1].layers[2].weight.neg_()
        joined = Joined(made, scale=2.5, width=WIDTH, classes=CLASSES)
        first, second = (one(v) for one in made)
        mean = first + second
        mean = mean / mean.norm(dim=1, keepdim=True)
        taught = torch.stack([second[0], first[1], second[2]])
        for context, given in ((mean, ()), (taught, (torch.tensor([0, 1, 0]),))):
            whole = torch.cat([v, 2.5 * context], dim=1)
            wanted = whole @ joined.linear.weight.T + joined.linear.bias
            torch.testing.assert_close(joined(v, *given), wanted)


def test_no_generator_has_seen_the_text_of_a_sample_whose_context_it_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, taught = with_texts(right=True), {}
    learn = multimodal._trained_generator

    def spy(work, v, texts, phrases, half):  # type: ignore[no-untyped-def]
        taught[half] = {tuple(row) for row in v.tolist()}
        return learn(work, v, texts, phrases, half)

    monkeypatch.setattr(multimodal, "_trained_generator", spy)
    asked: list[tuple[int, bool]] = []
    forward = Joined.forward

    def watch(self, v, half=None):  # type: ignore[no-untyped-def]
        for row, own in zip(v.tolist(), half.tolist() if half is not None else (), strict=False):
            asked.append((own, tuple(row) in taught[1 - own]))
        return forward(self, v, half)

    monkeypatch.setattr(Joined, "forward", watch)
    multimodal.multimodal(work)
    assert {own for own, _ in asked} == {0, 1}
    assert not any(seen for _, seen in asked)


def test_phrases_are_different_and_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = unit_rows([[1.0, 0], [1, 0], [0, 0], [0, 1], [1, 1]])
    assert len(phrase_bank(texts, seed=0)) == 3
    monkeypatch.setattr(multimodal, "PHRASES", 2)
    assert len(phrase_bank(texts, seed=0)) == 2
    with pytest.raises(DataError, match="fewer than two different") as error:
        phrase_bank(texts[:3], seed=0)
    assert "--row" in error.value.hint
