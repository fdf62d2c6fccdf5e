"""Checkpoints appear whole, two are kept, and what is not ours or not whole is ignored."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from capro.train import checkpoints as module
from capro.train.checkpoints import Checkpoints


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3,), value), "b": torch.tensor(7)}


def steps(folder) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*"))


def latest_step(store: Checkpoints) -> int | None:
    found = store.latest()
    return None if found is None else found[1]["at"]


def test_what_was_saved_comes_back_to_the_bit(tmp_path):
    store = Checkpoints(tmp_path / "c", "key")
    assert store.latest() is None
    noise = torch.randn(4, 5)
    store.save(3, {"noise": noise, "view": noise[:, 1:3].T}, {"at": 3, "sum": 0.1 + 0.2})
    found, values = store.latest()
    assert torch.equal(found["noise"], noise)
    assert torch.equal(found["view"], noise[:, 1:3].T)
    assert values == {"at": 3, "sum": 0.1 + 0.2}


def test_the_last_two_are_kept(tmp_path):
    store = Checkpoints(tmp_path, "key")
    for step in (5, 10, 15, 20):
        store.save(step, tensors(step), {"at": step})
    assert steps(tmp_path) == [15, 20]
    store.save(20, tensors(0), {"at": 21})  # the same step again replaces
    assert steps(tmp_path) == [15, 20]
    assert latest_step(store) == 21


@pytest.mark.parametrize("damage", ["no state", "half state", "no tensors", "half tensors"])
def test_a_damaged_checkpoint_is_ignored(tmp_path, damage):
    store = Checkpoints(tmp_path, "key")
    store.save(1, tensors(1), {"at": 1})
    store.save(2, tensors(2), {"at": 2})
    what, name = damage.split()
    file = tmp_path / "000000002" / ("state.json" if name == "state" else "tensors.safetensors")
    if what == "no":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    assert latest_step(store) == 1


def test_a_state_that_is_no_mapping_is_ignored(tmp_path):
    store = Checkpoints(tmp_path, "key")
    store.save(1, tensors(1), {"at": 1})
    (tmp_path / "000000001" / "state.json").write_text("[1]")
    assert store.latest() is None


def test_others_checkpoints_are_ignored_and_never_push_ours_out(tmp_path):
    """Ours count from 0 again: by number alone, older and larger ones would be kept instead."""
    other = Checkpoints(tmp_path, "other")
    other.save(500, tensors(1), {"at": 500})
    other.save(600, tensors(2), {"at": 600})
    ours = Checkpoints(tmp_path, "ours")
    assert ours.latest() is None
    ours.save(3, tensors(3), {"at": 3})
    assert latest_step(ours) == 3
    ours.save(6, tensors(3), {"at": 6})
    assert latest_step(ours) == 6
    assert steps(tmp_path) == [3, 6]


@pytest.mark.parametrize("where", ["write_weights", "write_json", "replace"])
def test_a_kill_while_writing_leaves_the_last_one(tmp_path, monkeypatch, where):
    store = Checkpoints(tmp_path, "key")
    store.save(1, tensors(1), {"at": 1})

    def die(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "replace":
            patch.setattr(os, "replace", die)
        else:
            patch.setattr(module, where, die)
        with pytest.raises(KeyboardInterrupt):
            store.save(2, tensors(2), {"at": 2})
    assert latest_step(store) == 1
    store.save(3, tensors(3), {"at": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000001", "000000003"]


def test_replacing_a_step_never_leaves_less_than_before(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path, "key")
    store.save(1, tensors(1), {"at": 1})
    real, calls = shutil.rmtree, []

    def half(path, **_options):
        calls.append(path)
        if (path / "tensors.safetensors").exists():
            (path / "tensors.safetensors").unlink()
            raise KeyboardInterrupt
        real(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(KeyboardInterrupt):
        store.save(1, tensors(9), {"at": 9})
    assert latest_step(store) in (1, 9)
    assert json.loads((tmp_path / "000000001" / "state.json").read_text())["key"] == "key"
