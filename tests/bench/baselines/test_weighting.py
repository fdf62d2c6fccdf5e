"""CurriculumNet and SOMNet: densities, bags and the memory by hand, and that they help where labels are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from capro.bench.baselines import weighting
from capro.data.views import QUERY
from tests.bench.baselines.toy_work import CLASSES, ToyWork, separation
from tests.train.toys import CPU, Toy


def test_curriculumnet_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork(seed=2)
    assert work.accuracy(weighting.curriculumnet(work)) > work.accuracy(work.step1()) + 0.1


def test_the_clean_subset_is_cleaner() -> None:
    work = ToyWork()
    labels = work.training.labels.numpy()
    found = weighting.subsets(work.v, labels, seed=0)
    assert [sorted(set(found[labels == c])) for c in range(CLASSES)] == [[0, 1, 2]] * CLASSES
    clean, _, dirty = (work.right[found == subset].mean() for subset in range(3))
    assert clean > work.right.mean() + 0.1 > dirty + 0.2
    assert separation(-found, work.right) > 0.65


def test_the_curriculum_is_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork(seed=2)
    curriculum_ = work.accuracy(weighting.curriculumnet(work))
    monkeypatch.setattr(weighting, "subsets", lambda v, labels, seed: np.zeros(len(labels), dtype=np.int64))
    assert curriculum_ > work.accuracy(weighting.curriculumnet(work)) + 0.1


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_densities_are_a_double_loops(n: int) -> None:
    v = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
    table = [[math.dist(a, b) for b in v.tolist()] for a in v.tolist()]
    near = sorted(value for row in table for value in row)
    cut = near[min(n * n - 1, int(0.6 * n * n))]
    slow = [max(0, sum(value < cut for value in row) - 1) for row in table]
    assert weighting.densities(v).tolist() == slow


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    v = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    whole = weighting.densities(v)
    monkeypatch.setattr(weighting, "MEASURED", 25)  # the cut-off is now an estimate
    assert np.corrcoef(whole, weighting.densities(v))[0, 1] > 0.95


def test_copies_are_one_subset() -> None:
    v = np.ones((5, 3), dtype=np.float32)
    assert weighting.subsets(v, np.zeros(5, dtype=np.int64), seed=0).tolist() == [0] * 5


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
    assert (weighting.stage_weights(subset, stage) * losses).mean() == pytest.approx(sum(drawn), rel=1e-5)


def test_somnet_it_beats_vanilla_where_two_fifths_are_wrong() -> None:
    work = ToyWork()
    assert work.accuracy(weighting.somnet(work)) > work.accuracy(work.step1()) + 0.15


def test_the_memory_is_what_helps_where_half_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ToyWork(noise=0.5, overrides=("pretrain.epochs=30",))
    weighed = work.accuracy(weighting.somnet(work))
    monkeypatch.setattr(weighting, "SETTLE", 2.0)  # all regions weigh the same until the end
    assert weighed > work.accuracy(weighting.somnet(work)) + 0.05


def organised(work: ToyWork, rounds: int = 8) -> weighting.Memory:
    v, y = torch.from_numpy(work.v), work.training.labels
    memory = weighting.Memory(v[:25], CLASSES)
    for done in np.linspace(0, 1, rounds).tolist():
        for rows in torch.arange(len(v)).chunk(5):
            memory.update(v[rows], y[rows], reach=memory.widest + done * (weighting.REACH - memory.widest))
    return memory


def test_the_memory_finds_wrong_labels_and_a_grid_of_neighbours() -> None:
    work = ToyWork()
    memory = organised(work)
    weights = memory.weights(torch.from_numpy(work.v), work.training.labels).numpy()
    assert separation(weights, work.right) > 0.9
    alike = (memory.keys @ memory.keys.T).numpy()
    steps = torch.cdist(memory._grid, memory._grid).numpy()
    assert alike[steps == 1].mean() > alike[steps > 2].mean() + 0.2  # neighbours on the grid look alike


def test_scores_are_the_clusters() -> None:
    torch.manual_seed(0)
    memory = weighting.Memory(torch.randn(4, 3), 2)
    memory.values = torch.tensor([[3.0, 1.0], [0.0, 0.0], [6.0, 2.0], [1.0, 8.0]])
    v, y = torch.randn(20, 3), torch.arange(20) % 2
    found = memory.weights(v, y)
    for x, label, weight in zip(v, y.tolist(), found.tolist(), strict=True):
        cosines = [float(x @ key / (x.norm() * key.norm())) for key in memory.keys]
        values = memory.values[cosines.index(max(cosines))]
        share = float(values[label] / values.sum()) if values.any() else 0.0
        assert weight == pytest.approx(share * float(values[label]) / (6.0, 8.0)[label], abs=1e-6)


def test_an_update_is_kohonens() -> None:
    torch.manual_seed(0)
    memory = weighting.Memory(torch.randn(4, 3), 2)
    v, y, reach = torch.nn.functional.normalize(torch.randn(5, 3), dim=1), torch.tensor([0, 1, 1, 0, 1]), 0.7
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    keys, values, winners = memory.keys.clone(), torch.zeros(4, 2), memory.winners(v).tolist()
    expected = []
    for number, here in enumerate(places):
        near = [math.exp(-(math.dist(here, places[w]) ** 2) / (2 * reach**2)) for w in winners]
        mean = sum(h * x for h, x in zip(near, v, strict=True)) / sum(near)
        moved = keys[number] + 0.1 * min(1.0, sum(near)) * (mean - keys[number])
        expected.append(moved / moved.norm())
        for h, label in zip(near, y.tolist(), strict=True):
            values[number, label] += h
    memory.update(v, y, reach=reach)
    torch.testing.assert_close(memory.keys, torch.stack(expected))
    torch.testing.assert_close(memory.values, values)
    memory.update(v[:0], y[:0], reach=reach)
    torch.testing.assert_close(memory.values, 0.99 * values)


def test_every_picture_is_in_a_bag_of_its_class_in_every_epoch() -> None:
    labels = np.array([0] * 9 + [2] * 4 + [1])
    bags = weighting.Bags(Toy().inputs(), np.arange(14), labels, seed=0)
    assert labels[bags.leaders].tolist() == [0, 0, 0, 1, 2]
    first, second = bags.members(0), bags.members(1)
    assert first.shape == (5, weighting.IMAGES)
    for members in (first, second):
        assert (labels[members] == labels[bags.leaders][:, None]).all()
        assert set(members.ravel()) == set(range(14))
    assert (first != second).any()
    assert (bags.members(0) == first).all()


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_a_bag_holds_the_views_of_its_pictures(mode: str) -> None:
    toy = Toy(mode)
    positions, labels, inner = toy.positions, toy.labels.numpy(), toy.inputs()
    bags = weighting.Bags(inner, positions, labels, seed=0)
    at, epoch = positions[bags.leaders][[2, 0]], 3
    raw = bags.raw(at, epoch=epoch, view=QUERY)
    found = bags.ready(raw, at, epoch=epoch, view=QUERY, device=CPU)
    assert found.shape[:2] == (2, weighting.IMAGES * weighting.REGIONS)
    for bag, number in enumerate([2, 0]):
        for image, row in enumerate(bags.members(epoch)[number].tolist()):
            for region in range(weighting.REGIONS):
                one, view = positions[[row]], weighting.REGIONS * epoch + region
                own = inner.raw(one, epoch=view, view=QUERY)
                own = inner.ready(own, one, epoch=view, view=QUERY, device=CPU)[0]
                torch.testing.assert_close(found[bag, image * weighting.REGIONS + region], own)


def test_a_step_learns_from_the_weighted_mean_of_each_bag() -> None:
    work = ToyWork(n=40)
    net, labels = work.net(), work.training.labels.numpy()
    bags = weighting.Bags(work.inputs(net), work.training.positions, labels, seed=0)
    y = torch.from_numpy(labels[bags.leaders])
    made = weighting.WeighedBags(work, net, y, organised(work))
    at, numbers = bags.leaders[:3], np.arange(3)
    for epoch in (0, 10):
        raw = bags.raw(at, epoch=epoch, view=QUERY)
        x = bags.ready(raw, at, epoch=epoch, view=QUERY, device=CPU)
        slow = []
        for bag in range(3):
            weights = made.memory.weights(x[bag], y[bag].repeat(8)) if epoch else torch.ones(8)
            mean = sum(w * v for w, v in zip(weights, x[bag], strict=True)) / weights.sum()
            slow.append(-net.heads.classifier(mean).log_softmax(dim=0)[y[bag]])
        batch = weighting.Batch(epoch, 0, numbers, slice(0, 3), x, None, numbers)
        torch.testing.assert_close(made.terms(batch)["cls"], sum(slow) / 3)
