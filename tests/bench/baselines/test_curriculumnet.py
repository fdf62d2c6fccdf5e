"""CurriculumNet: densities against a double loop, weights against batches of the paper's shares, and what it gains."""

from __future__ import annotations

import math

import numpy as np
import pytest

from capro.bench.baselines import curriculumnet as curriculum
from tests.bench.baselines.toy_work import CLASSES, ToyWork, separation


def test_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork(seed=2)
    assert work.accuracy(curriculum.learn(work)) > work.accuracy(work.step1()) + 0.1


def test_the_clean_subset_is_cleaner() -> None:
    work = ToyWork()
    labels = work.training.labels.numpy()
    found = curriculum.subsets(work.v, labels, seed=0)
    assert [sorted(set(found[labels == c])) for c in range(CLASSES)] == [[0, 1, 2]] * CLASSES
    clean, _, dirty = (work.right[found == subset].mean() for subset in range(3))
    assert clean > work.right.mean() + 0.1 > dirty + 0.2
    assert separation(-found, work.right) > 0.65


def test_the_curriculum_is_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork(seed=2)
    curriculum_ = work.accuracy(curriculum.learn(work))
    monkeypatch.setattr(curriculum, "subsets", lambda v, labels, seed: np.zeros(len(labels), dtype=np.int64))
    assert curriculum_ > work.accuracy(curriculum.learn(work)) + 0.1


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_densities_are_a_double_loops(n: int) -> None:
    v = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
    table = [[math.dist(a, b) for b in v.tolist()] for a in v.tolist()]
    near = sorted(value for row in table for value in row)
    cut = near[min(n * n - 1, int(0.6 * n * n))]
    slow = [max(0, sum(value < cut for value in row) - 1) for row in table]
    assert curriculum.densities(v).tolist() == slow


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    v = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    whole = curriculum.densities(v)
    monkeypatch.setattr(curriculum, "MEASURED", 25)  # the cut-off is now an estimate
    assert np.corrcoef(whole, curriculum.densities(v))[0, 1] > 0.95


def test_copies_are_one_subset() -> None:
    v = np.ones((5, 3), dtype=np.float32)
    assert curriculum.subsets(v, np.zeros(5, dtype=np.int64), seed=0).tolist() == [0] * 5


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(6, 3, 1), (4, 4, 4), (5, 2, 0)])
def test_weights_give_the_loss_of_batches_with_the_papers_shares(stage: int, sizes: tuple[int, ...]) -> None:
    subset = np.repeat(np.arange(3), sizes)
    losses = np.random.default_rng(0).random(len(subset))
    shares = [[1, 0, 0], [1, 1, 0], [2, 1, 1]][stage]
    shares = [share if size else 0 for share, size in zip(shares, sizes, strict=True)]
    drawn = []  # one batch: as many of each subset as its share asks for, each sample equally often
    for s, share in enumerate(shares):
        if share:
            weight = 1.0 if s == 0 else 0.5
            drawn.append(share / sum(shares) * weight * losses[subset == s].mean())
    assert (curriculum.sample_weights(subset, stage) * losses).mean() == pytest.approx(sum(drawn), rel=1e-5)
