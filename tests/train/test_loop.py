"""The loop: resume to the bit, guard rails, figures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from capro.config import Schedule
from capro.errors import RunError
from capro.train import loop
from capro.train.batches import FeatureInputs
from capro.train.checkpoints import Checkpoints
from capro.train.objectives import ClassifierOnly, WebLabels
from tests.train.toys import Toy, everything, one_rank, same


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_at(monkeypatch, step: int):
    """A kill at the begin of the given step, counted within the process."""
    calls = iter(range(10**6))

    def rate(*args, **kwargs):
        if next(calls) == step:
            raise Killed
        return learning_rate(*args, **kwargs)

    learning_rate = loop.learning_rate
    monkeypatch.setattr(loop, "learning_rate", rate)


def resumed(toy: Toy, folder, monkeypatch, kills: list[int], minutes: float = 10.0):
    """Train under kills, each counted from the start of its process; then to the end."""
    options = {"checkpoints": Checkpoints(folder, "key"), "checkpoint_minutes": minutes}
    for step in kills:
        with monkeypatch.context() as patch:
            killed_at(patch, step)
            with pytest.raises(Killed):
                toy.trained(**options)
    return toy.trained(**options)


CASES = [
    Toy(),
    Toy(settings={"update_every": 0, "reference": "mixup"}),
    Toy(settings={"update_every": 2, "reference": "cb+mixup", "policy": "mopro"}),
    Toy(multi=True),
    Toy(multi=True, settings={"update_every": 0, "reference": "ncr"}),
    Toy("full"),
    Toy("full", settings={"update_every": 0, "reference": "cb+mixup", "frozen_epochs": 0}),
]


@pytest.mark.parametrize("toy", CASES, ids=str)
@pytest.mark.parametrize("minutes", [10.0, 1e-9], ids=["epochs", "steps"])
def test_a_killed_training_ends_as_if_it_never_was(tmp_path, monkeypatch, toy, minutes):
    whole = toy.trained()
    assert len(whole["history"]) == 3
    many = [[0], [4], [3, 1], [2, 2, 2, 2], [8]]
    for number, kills in enumerate(many if toy is CASES[0] else [[4], [1, 2]]):
        folder = tmp_path / str(number)
        assert same(resumed(toy, folder, monkeypatch, kills, minutes), whole)


def test_a_kill_after_any_save_is_survived(tmp_path, monkeypatch):
    """Right after a checkpoint, also after the last step of an epoch, before its figures."""
    toy = Toy()
    whole = toy.trained()
    real = Checkpoints.save
    for fatal in range(9):
        count = iter(range(100))

        def save(self, *args, count=count, fatal=fatal):
            real(self, *args)
            if next(count) == fatal:
                raise Killed

        options = {"checkpoints": Checkpoints(tmp_path / str(fatal), "k"), "checkpoint_minutes": 1e-9}
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save", save)
            with pytest.raises(Killed):
                toy.trained(**options)
        assert same(toy.trained(**options), whole)


def test_a_finished_training_is_not_repeated(tmp_path, monkeypatch):
    toy = Toy()
    options = {"checkpoints": Checkpoints(tmp_path, "key")}
    whole = toy.trained(**options)
    monkeypatch.setattr(loop, "learning_rate", None)  # a step would fail
    assert same(toy.trained(**options), whole)


def test_a_checkpoint_holds_everything(tmp_path):
    toy = Toy("full")
    toy.trained(checkpoints=Checkpoints(tmp_path, "key"))
    newest = max(tmp_path.iterdir())
    names = set(load_file(newest / "tensors.safetensors"))
    weights = {f"net.{name}" for name in toy.net().state_dict()}
    assert weights <= names
    assert {name.split(".")[1] for name in weights} == {
        "encoder", "heads", "key_encoder", "key_projector",
    }  # fmt: skip
    assert {
        "objective.prototypes", "objective.pseudo", "objective.decisions", "objective.anchored",
        "objective.dictionary.store", "objective.dictionary.pointer", "objective.dictionary.filled",
        "random",
    } <= names  # fmt: skip
    assert sum(name.startswith("momentum.") for name in names) == len(toy.objective().parameters())
    state = json.loads((newest / "state.json").read_text())
    assert {"key", "tensors", "values"} <= set(state)
    assert {"epoch", "step", "sums", "history", "random"} <= set(state["values"])


def test_random_layers_resume_to_the_bit(tmp_path, monkeypatch):
    """Dropout draws from torch's state."""

    class Dropping(Toy):
        def backbone(self):
            backbone = super().backbone()
            backbone.body = torch.nn.Dropout(0.5)
            return backbone

    toy = Dropping()
    whole = toy.trained()
    torch.manual_seed(99)
    assert same(resumed(toy, tmp_path, monkeypatch, [4, 1], 1e-9), whole)


def test_checkpoints_of_another_training_are_not_taken_up(tmp_path):
    toy, other = Toy(), Toy(settings={"lr": 0.3})
    other.trained(checkpoints=Checkpoints(tmp_path, "other"))
    assert same(toy.trained(checkpoints=Checkpoints(tmp_path, "mine")), toy.trained())


# --- figures --------------------------------------------------------------------------------------


def test_history_is_the_mean_over_the_steps():
    toy = Toy()
    seen = []

    def log(values, step):
        seen.append((values, step))

    history = toy.fit(toy.objective(), log=log)
    assert seen == [(row, 3 * (number + 1)) for number, row in enumerate(history)]
    for row in history:
        assert set(row) >= {"epoch", "lr", "loss", "cls", "prj", "pro", "ins", "bts"}
        weights = toy.objective().weights
        total = (1 - weights["bts"]) * row["cls"] + sum(
            weights[name] * row[name] for name in ("bts", "prj", "pro", "ins")
        )
        assert row["loss"] == pytest.approx(total, rel=1e-5)


def test_training_learns_and_corrects():
    toy = Toy(n=90, settings={"epochs": 10, "lr": 0.3})
    objective = toy.objective()
    history = toy.fit(objective)
    assert history[-1]["cls"] < 0.5 * history[0]["cls"]
    pseudo = objective.state()["pseudo"]
    right = (pseudo == torch.from_numpy(toy.hidden))[pseudo >= 0].float().mean()
    before = (toy.labels == torch.from_numpy(toy.hidden)).float().mean()
    assert right > before + 0.1


def test_progress_tells_terms_and_the_last_epochs_shares():
    from contextlib import contextmanager

    notes = []

    @contextmanager
    def bar(_label, _total):
        yield lambda _advance=1, figures="": notes.append(str(figures))

    toy = Toy()
    history = toy.fit(toy.objective(), bar=bar)
    assert notes[1].startswith("epoch 1/3 loss ")
    assert "ins " in notes[1]
    assert "keep" not in notes[3]
    share = f"{history[0]['keep']:.0%}"
    assert f" keep {share} " in notes[4]


def test_progress_counts_the_steps_that_are_done(tmp_path):
    from contextlib import contextmanager

    told = []

    @contextmanager
    def bar(label, total):
        told.append((label, total))
        yield lambda advance=1, figures=None: told.append(advance)

    toy = Toy()
    store = Checkpoints(tmp_path, "key")
    toy.fit(toy.objective(), bar=bar)
    assert told == [("toy", 9), 0] + [1] * 9
    toy.fit(toy.objective(), checkpoints=store)
    told.clear()
    toy.fit(toy.objective(), checkpoints=store, bar=bar)
    assert told == [("toy", 9), 9]


# --- guard rails ----------------------------------------------------------------------------------


def poisoned(toy: Toy, value: float, row: int, epochs=(1,)) -> FeatureInputs:
    class Poisoned(FeatureInputs):
        def raw(self, positions, *, epoch, view):
            rows = super().raw(positions, epoch=epoch, view=view).copy()
            if epoch in epochs:
                rows[positions == row] = value
            return rows

    return Poisoned(toy.plain, toy.query, toy.key, toy.positions, seed=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_stops_with_step_and_ids(value, tmp_path):
    toy = Toy()
    store = Checkpoints(tmp_path / "checkpoints", "key")
    with pytest.raises(RunError) as caught:
        toy.fit(toy.objective(), inputs=poisoned(toy, value, 5), checkpoints=store)
    plan = loop.BatchPlan(toy.n, 8, 3)
    step, batch = next((s, b) for s, b in enumerate(plan.batches(1)) if 5 in b)
    message = str(caught.value)
    assert f"epoch 1, step {step}" in message
    assert "s5" in message  # the sample to blame is named first
    assert "is not finite" in message
    assert caught.value.hint
    told = json.loads((tmp_path / "not-finite.json").read_text())
    assert told["samples"] == [f"s{i}" for i in batch]
    assert (told["epoch"], told["step"]) == (1, step)
    # the weights of the last checkpoint are still good: the same data without the poison goes on
    assert same(toy.trained(checkpoints=store), toy.trained())


def test_the_device_is_asked_for_numbers_every_few_steps_only(monkeypatch):
    """After the first step, then every tenth, and at the end of an epoch; a bad step is still named exactly."""
    toy = Toy(n=200, settings={"epochs": 2})
    asked = []
    real = loop.Training.check

    def check(training):
        asked.append((training.epoch, training.step))
        assert all(isinstance(total, torch.Tensor) for total in training.sums.values())
        return real(training)

    monkeypatch.setattr(loop.Training, "check", check)
    toy.fit(toy.objective())
    assert asked == [(epoch, step) for epoch in (0, 1) for step in (1, 11, 21, 25)]
    batches = loop.BatchPlan(toy.n, 8, 3).batches(1)
    sample = int(batches[13][2])
    with pytest.raises(RunError, match=f"is not finite in epoch 1, step 13; samples s{sample}$"):
        toy.fit(toy.objective(), inputs=poisoned(toy, math.nan, sample))
    assert asked[-1] == (1, 21)


def test_an_infinite_gradient_stops_before_it_reaches_a_checkpoint(tmp_path):
    toy = Toy()
    objective = toy.objective()
    real = objective.terms

    def terms(batch):
        found = real(batch)
        if (batch.epoch, batch.step) == (1, 2):
            found["cls"] = found["cls"] + (found["cls"] * 0).sqrt()  # 0, with slope inf
        return found

    objective.terms = terms
    with pytest.raises(RunError, match="gradient is not finite in epoch 1, step 2"):
        toy.fit(objective, checkpoints=Checkpoints(tmp_path, "key"), checkpoint_minutes=1e-9)
    tensors = load_file(max(tmp_path.glob("[0-9]*")) / "tensors.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert same(toy.trained(checkpoints=Checkpoints(tmp_path, "key")), toy.trained())


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize(
    "size",
    [{"n": 1, "classes": 1}, {"n": 2, "classes": 2}, {"n": 5, "classes": 7}, {"n": 9, "classes": 1}],
    ids=str,
)
def test_tiny_sets_train(size, multi):
    """One sample, one class, classes without a sample, fewer samples than batch and dictionary."""
    toy = Toy(multi=multi, **size, settings={"batch_size": 64, "queue": 8192})
    found = toy.trained()
    assert all(math.isfinite(value) for row in found["history"] for value in row.values())
    assert len(found["objective.dictionary.store"]) == size["n"]
    for objective in (
        WebLabels(toy.net(), toy.task, toy.labels, one_rank(), lambda_prj=1.0),
        ClassifierOnly(toy.net(), toy.task, toy.labels, one_rank()),
    ):
        assert len(toy.fit(objective)) == 3


def test_no_epochs_leave_the_weights():
    toy = Toy(settings={"epochs": 0})
    objective = toy.objective()
    before = everything(objective)
    assert toy.fit(objective) == []
    assert same(everything(objective), before)


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_nobody_to_train_on_leaves_the_weights(mode):
    """Step 3 where the rule dropped everyone, heads on anchors where there is none."""
    toy = Toy(mode)
    net = toy.net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    objective = ClassifierOnly(net, toy.task, toy.labels[:0], one_rank())
    assert toy.fit(objective, positions=np.zeros(0, dtype=np.int64)) == []
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_half_precision_runs():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from capro.pipeline.ranks import Ranks

    AcceleratorState._reset_state()
    try:
        ranks = Ranks(Accelerator(cpu=True, mixed_precision="bf16"))
        for toy in (Toy("full", batch_norm=False), Toy(multi=True)):
            history = toy.fit(toy.objective(ranks), ranks)
            assert all(math.isfinite(value) for row in history for value in row.values())
    finally:
        AcceleratorState._reset_state()


def test_a_schedule_alone_decides_the_rate():
    toy = Toy()
    objective = WebLabels(toy.net(), toy.task, toy.labels, one_rank(), lambda_prj=1.0)
    history = toy.fit(objective, schedule=Schedule(epochs=4, lr=1e-3, warmup_epochs=2, batch_size=8))
    assert [row["lr"] for row in history][:2] == pytest.approx([5e-4, 1e-3])
