"""Batches: every sample once, nothing random beside (seed, epoch, step, sample)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capro.config import ViewSettings
from capro.data.views import KEY, QUERY
from capro.train import batches as module
from capro.train.batches import (
    PLAIN,
    BatchPlan,
    FeatureInputs,
    ImageInputs,
    load_batches,
    plain_batches,
    slices,
)
from tests.train.toys import Toy, ToyPixels

CPU = torch.device("cpu")


@given(rows=st.integers(1, 200), size=st.integers(1, 70), epoch=st.integers(0, 5))
def test_an_epoch_covers_every_sample_once_in_even_batches(rows, size, epoch):
    batches = BatchPlan(rows, size, seed=3).batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    sizes = [len(batch) for batch in batches]
    assert len(batches) == BatchPlan(rows, size, seed=3).steps
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


@given(size=st.integers(0, 60), ranks=st.integers(1, 9))
def test_slices_cover_in_order(size, ranks):
    parts = slices(size, ranks)
    assert len(parts) == ranks
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(size))
    widths = [part.stop - part.start for part in parts]
    assert max(widths) - min(widths) <= 1


@given(size=st.integers(1, 40), step=st.integers(0, 9))
def test_key_order_is_a_permutation_of_its_own(size, step):
    plan = BatchPlan(100, 40, seed=1)
    order = plan.key_order(2, step, size)
    assert sorted(order.tolist()) == list(range(size))
    assert np.array_equal(order, plan.key_order(2, step, size))


def test_epochs_and_seeds_have_different_orders():
    orders = [np.concatenate(BatchPlan(50, 10, seed).batches(epoch)) for seed in (0, 1) for epoch in (0, 1)]
    for a in range(4):
        for b in range(a):
            assert not np.array_equal(orders[a], orders[b])


def loaded(toy: Toy, *, rank: int = 0, ranks: int = 1, first: int = 0, epoch: int = 1):
    return list(
        load_batches(
            toy.inputs(), BatchPlan(toy.n, 8, seed=3), toy.positions, epoch=epoch, first=first,
            keys=True, rank=rank, ranks=ranks, device=CPU,
        )
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_a_resumed_epoch_sees_the_rest_of_the_same_batches(mode):
    whole, rest = loaded(Toy(mode)), loaded(Toy(mode), first=2)
    assert [batch.step for batch in rest] == [2]
    assert np.array_equal(rest[0].everyone, whole[2].everyone)
    assert torch.equal(rest[0].query, whole[2].query)
    assert torch.equal(rest[0].key, whole[2].key)


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_ranks_hold_the_parts_of_one_batch(mode):
    whole = loaded(Toy(mode))
    parts = [loaded(Toy(mode), rank=rank, ranks=3) for rank in range(3)]
    for step, batch in enumerate(whole):
        mine = [part[step] for part in parts]
        assert np.array_equal(np.concatenate([m.samples for m in mine]), batch.everyone)
        # colours are drawn per sample, so that a rank's images are those of the whole batch
        assert torch.allclose(torch.cat([m.query for m in mine]), batch.query, atol=1e-6)
        assert torch.allclose(torch.cat([m.key for m in mine]), batch.key, atol=1e-6)


def test_keys_are_computed_in_another_order_and_put_back():
    toy = Toy(views=1)
    for batch in loaded(toy):
        assert not np.array_equal(batch.key_order, np.arange(len(batch.everyone)))
        restored = torch.empty_like(batch.key)
        restored[torch.from_numpy(batch.key_order)] = batch.key
        assert np.array_equal(restored.numpy(), toy.key[0][batch.everyone])
        assert np.array_equal(batch.query.numpy(), toy.query[0][batch.everyone])


def test_features_show_all_their_views_in_turn():
    toy = Toy(views=3, n=60)
    inputs = toy.inputs()
    for view, stored in ((QUERY, toy.query), (KEY, toy.key)):
        seen = []
        for epoch in range(12):
            rows = inputs.raw(toy.positions, epoch=epoch, view=view)
            which = (rows[None] == stored).all(axis=2)  # (views, n)
            assert which.sum(axis=0).tolist() == [1] * toy.n
            seen.append(which.argmax(axis=0))
            again = inputs.raw(toy.positions[::-1], epoch=epoch, view=view)
            assert np.array_equal(again[::-1], rows)
        assert all(len(set(column)) > 1 for column in np.array(seen).T)
    assert np.array_equal(inputs.raw(toy.positions, epoch=4, view=PLAIN), toy.plain)


def test_features_of_training_rows_are_found_by_manifest_position():
    plain = np.arange(10, dtype=np.float32).reshape(5, 2)
    train = np.array([1, 3])  # positions 0, 2, 4 are test samples
    rows = np.full(5, -1)
    rows[train] = [0, 1]
    inputs = FeatureInputs(plain, plain[train][None] + 100, plain[train][None] + 200, rows, seed=0)
    assert inputs.raw(np.array([3, 1]), epoch=0, view=QUERY).tolist() == [[106, 107], [102, 103]]
    assert inputs.raw(np.array([4]), epoch=0, view=PLAIN).tolist() == [[8, 9]]


@pytest.mark.parametrize("count", [0, 1, 7, 22])
def test_plain_batches_keep_the_order(count, monkeypatch):
    monkeypatch.setattr(module, "EVAL_BATCH", 5)
    toy = Toy()
    wanted = toy.positions[::-1][:count]
    found = list(plain_batches(toy.inputs(), wanted, device=CPU))
    assert [int(i) for rows, _ in found for i in rows] == list(range(count))
    if count:
        assert np.array_equal(torch.cat([x for _, x in found]).numpy(), toy.plain[wanted])


def test_an_error_in_a_worker_reaches_the_loop():
    class Broken(FeatureInputs):
        def raw(self, positions, *, epoch, view):
            raise OSError("gone")

    toy = Toy()
    inputs = Broken(toy.plain, toy.query, toy.key, toy.positions, seed=0)
    with pytest.raises(OSError, match="gone"):
        next(
            load_batches(
                inputs, BatchPlan(8, 4, 0), toy.positions, epoch=0, first=0, keys=False, rank=0,
                ranks=1, device=CPU,
            )
        )  # fmt: skip


def test_the_key_view_may_have_crops_of_its_own() -> None:
    """The toy's pictures: crops of the whole area are the same in every epoch, those of a part are not."""
    toy = Toy(mode="full")
    rows = np.arange(4)
    for own, view in ((0.3, KEY), (None, KEY), (0.3, QUERY)):
        views = ViewSettings(size=16, crop_scale=1.0, key_crop_scale=own, flip=0.0)
        pixels = ToyPixels(toy.hidden)
        inputs = ImageInputs(pixels, toy.backbone(), views, seed=0)  # type: ignore[arg-type]
        first, second = (inputs.raw(rows, epoch=epoch, view=view) for epoch in (0, 1))
        assert np.array_equal(first, second) == (own is None or view == QUERY)
