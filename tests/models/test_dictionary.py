from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from capro.models.siamese import Dictionary
from tests.train.toys import ordered


@given(st.integers(1, 12), st.lists(st.integers(0, 30), max_size=8))
def test_after_any_pushes_it_holds_the_last_q(size: int, batches: list[int]) -> None:
    queue = Dictionary(size, 2)
    pushed: list[list[float]] = []  # the slow reference: a plain list
    for b in batches:
        keys = torch.arange(len(pushed), len(pushed) + b).float()[:, None] * torch.tensor([1.0, 2.0])
        queue.enqueue(keys)
        pushed += keys.tolist()
        last = pushed[-size:]
        assert len(queue) == len(last) == len(queue.keys)
        assert ordered(queue).tolist() == last
        assert sorted(queue.keys.tolist()) == sorted(last)


def test_one_key_at_a_time_equals_one_batch() -> None:
    keys = torch.randn(7, 3)
    together, apart = Dictionary(5, 3), Dictionary(5, 3)
    together.enqueue(keys)
    for key in keys:
        apart.enqueue(key[None])
    assert torch.equal(ordered(together), ordered(apart))


def test_empty_at_the_start() -> None:
    assert Dictionary(4, 2).keys.shape == (0, 2)


def test_keys_are_without_gradient_and_copied() -> None:
    queue = Dictionary(4, 2)
    keys = torch.ones(2, 2, requires_grad=True)
    queue.enqueue(keys * 1)
    assert not queue.keys.requires_grad
    source = torch.ones(1, 2)
    queue.enqueue(source)
    source.zero_()
    assert bool((queue.keys == 1).all())


def test_half_precision_keys_are_stored_in_full() -> None:
    queue = Dictionary(4, 2)
    queue.enqueue(torch.ones(1, 2, dtype=torch.bfloat16))
    assert queue.keys.dtype == torch.float32


@pytest.mark.parametrize("pushes", [2, 5, 8])
def test_checkpoint_goes_on_where_it_stopped(tmp_path: Path, pushes: int) -> None:
    torch.manual_seed(0)
    queue, again = Dictionary(5, 3), Dictionary(5, 3)
    queue.enqueue(torch.randn(pushes, 3))
    save_file(queue.state_dict(), tmp_path / "queue.safetensors")
    again.load_state_dict(load_file(tmp_path / "queue.safetensors"))
    more = torch.randn(4, 3)
    queue.enqueue(more)
    again.enqueue(more)
    assert len(again) == len(queue)
    assert torch.equal(again.keys, queue.keys)
    assert torch.equal(ordered(again), ordered(queue))


def test_a_parent_module_restores_it_too() -> None:
    one = torch.nn.ModuleDict({"queue": Dictionary(3, 1)})
    two = torch.nn.ModuleDict({"queue": Dictionary(3, 1)})
    one["queue"].enqueue(torch.ones(2, 1))  # type: ignore[operator]
    two.load_state_dict(one.state_dict())
    assert len(two["queue"]) == 2  # type: ignore[arg-type]
