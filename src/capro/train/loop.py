"""The one loop. Every training of capro runs through ``Training.fit``, top to bottom."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import Schedule
from capro.core import losses
from capro.errors import ConfigError, RunError
from capro.pipeline import progress
from capro.pipeline.artefacts import NOT_FINITE, write_json
from capro.pipeline.checksums import seed_for
from capro.pipeline.progress import Figures
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch, BatchPlan, Inputs, load_batches
from capro.train.checkpoints import Checkpoints
from capro.train.objectives import Objective

CHECK_EVERY = 10  # steps after which losses and gradients are looked at
SHOWN_IDS = 5


@dataclass
class Training:
    """A training: what it trains, how far it is, and its checkpoints.

    Args:
        objective: What to train.
        inputs: Where views come from.
        positions: Manifest position of each training row.
        schedule: Epochs, batch size, learning rate.
        name: For messages.
        seed: Of the order of samples.
        ranks: The ranks.
        ids: Sample ids by manifest position, for messages.
        checkpoints: Where to resume from and to write to; None for trainings of a few seconds.
        checkpoint_minutes: A checkpoint at least this often, besides every epoch.
        bar: Progress.
        log: Called with the figures of each epoch, and the step.
    """

    objective: Objective
    inputs: Inputs
    positions: NDArray[np.int64]
    schedule: Schedule
    _: KW_ONLY
    name: str
    seed: int
    ranks: Ranks
    ids: list[str]
    checkpoints: Checkpoints | None = None
    checkpoint_minutes: float = 10.0
    bar: progress.Bar = progress.silent
    log: Callable[[dict[str, float], int], None] = lambda _values, _step: None

    def __post_init__(self) -> None:
        schedule = self.schedule
        self.plan = BatchPlan(len(self.positions), schedule.batch_size, self.seed)
        self.parameters = self.objective.parameters()
        optimizer = torch.optim.SGD(
            self.parameters, lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
        )
        self.optimizer = self.ranks.accelerator.prepare_optimizer(optimizer)
        self.epoch = self.step = 0  # the next step, within the epoch
        self.sums: dict[str, Tensor | float] = {}  # of the running epoch
        self.history: list[dict[str, float]] = []  # of past epochs
        self.unchecked: list[dict[str, Tensor]] = []  # figures by step, on the device

    def fit(self) -> list[dict[str, float]]:
        """Train the objective; returns one row of figures per epoch."""
        objective, ranks, steps, epochs = self.objective, self.ranks, self.plan.steps, self.schedule.epochs
        smallest = self.plan.rows // steps
        if not self.plan.rows:
            return []
        if smallest < ranks.count:
            raise ConfigError(
                f"{self.name}: a batch of {smallest} samples cannot be shared by {ranks.count} ranks",
                hint="launch fewer processes, or raise the batch size",
            )
        resumed, saved_at = self.restore(), time.monotonic()
        with self.bar(self.name, epochs * steps) as advance:
            advance(self.epoch * steps + self.step)
            while self.epoch < epochs:
                ranks.align(objective.net.buffers())
                objective.begin_epoch(self.epoch, resumed=resumed and self.step > 0)
                resumed = False
                for batch in self.batches(self.step, rank=ranks.index, ranks=ranks.count):
                    rate = self.learn(batch)
                    figures, last = None, self.step == steps
                    due = time.monotonic() - saved_at > 60 * self.checkpoint_minutes and not last
                    if due or last or self.step % CHECK_EVERY == 1:
                        figures = Figures(self.epoch, epochs, rate, self.check(), self.history)
                    advance(1, figures=figures)
                    if due:
                        self.save()
                        saved_at = time.monotonic()
                row = {"epoch": float(self.epoch), "lr": rate, **self.means(), **objective.statistics()}
                self.history.append(row)
                self.epoch, self.step, self.sums = self.epoch + 1, 0, {}
                self.log(row, self.epoch * steps)
                self.save()
                saved_at = time.monotonic()
        return self.history

    def batches(self, first: int, *, rank: int, ranks: int) -> Iterator[Batch]:
        """The batches of the running epoch from a step on."""
        return load_batches(
            self.inputs, self.plan, self.positions, epoch=self.epoch, first=first,
            keys=self.objective.keys, rank=rank, ranks=ranks, device=self.ranks.accelerator.device,
        )  # fmt: skip

    def learn(self, batch: Batch) -> float:
        """Learn from a batch; returns the learning rate. Asks the device for nothing."""
        objective, accelerator = self.objective, self.ranks.accelerator
        done = self.epoch * self.plan.steps + self.step
        torch.manual_seed(seed_for(self.seed, "layers", done, self.ranks.index))  # dropout and such
        rate = learning_rate(done, steps_per_epoch=self.plan.steps, schedule=self.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with accelerator.autocast():
            terms = objective.terms(batch)
            loss = losses.total(terms, objective.weights)
        figures = self._of_all_ranks({"loss": loss, **terms})
        self.optimizer.zero_grad()
        accelerator.backward(loss)
        self.ranks.average_gradients(self.parameters)
        self.unchecked.append(figures)
        if accelerator.scaler is None:  # fp16's own scaler leaves out a step without finite gradients
            grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            norms = torch._foreach_norm(grads) if grads else [loss.new_zeros(())]
            self.unchecked[-1] = figures | {"gradient": torch.stack([*norms]).norm()}
        self.optimizer.step()
        objective.after(batch)
        self.step += 1
        for key, value in figures.items():
            self.sums[key] = self.sums.get(key, 0.0) + value
        return rate

    def _of_all_ranks(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Loss terms of the global batch: the mean over ranks, since divisors are global."""
        values = torch.stack([term.detach().float() for term in terms.values()])
        means = self.ranks.gather(values[None], [1] * self.ranks.count).mean(dim=0)  # (terms,)
        exact = means if means.device.type == "mps" else means.double()  # Macs have no float64
        return dict(zip(terms, exact.unbind(), strict=True))

    def means(self) -> dict[str, float]:
        """Loss terms of the epoch that has ended, as means over its steps."""
        return {key: float(total) / self.plan.steps for key, total in self.sums.items()}

    def check(self) -> dict[str, float]:
        """Loss terms of the last step; stops where a figure of a step since the last check is not finite."""
        rows = torch.stack([torch.stack([*row.values()]) for row in self.unchecked]).tolist()
        names = [*self.unchecked[-1]]
        self.unchecked.clear()
        for step, row in enumerate(rows, self.step - len(rows)):
            bad = [name for name, value in zip(names, row, strict=True) if not math.isfinite(value)]
            if bad:
                self._stop(step, bad)
        return {name: value for name, value in zip(names, rows[-1], strict=True) if name != "gradient"}

    def _stop(self, step: int, bad: list[str]) -> NoReturn:
        """Stop with the step and its samples; those whose input is not finite are named: they are the cause."""
        batch = next(iter(self.batches(step, rank=0, ranks=1)))  # a function of the step: made again
        broken = ~torch.isfinite(batch.query.flatten(1)).all(dim=1).cpu().numpy()
        everyone = [self.ids[i] for i in self.positions[batch.everyone]]
        blamed = [one for one, guilty in zip(everyone, broken, strict=True) if guilty] or everyone
        where = ""
        if self.checkpoints is not None:
            file = self.checkpoints.folder.parent / NOT_FINITE
            where = f" (all in {file})"
            if self.ranks.main:
                stopped = {"epoch": self.epoch, "step": step, "figures": bad}
                write_json(file, {**stopped, "samples": everyone, "broken_inputs": int(broken.sum())})
        more = f" and {len(blamed) - SHOWN_IDS} more" if blamed[SHOWN_IDS:] else ""
        raise RunError(
            f"{self.name}: {', '.join(bad)} is not finite in epoch {self.epoch}, step {step}; "
            f"samples {', '.join(blamed[:SHOWN_IDS])}{more}{where}",
            hint="lower the learning rate (--set train.lr=... or --set pretrain.lr=...), or check these samples",
        )

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """The main rank writes; nobody waits for it, so that ranks may disagree about the time."""
        if self.checkpoints is None or not self.ranks.main:
            return
        objective, scaler = self.objective, self.ranks.accelerator.scaler
        tensors = {f"net.{name}": tensor for name, tensor in objective.net.state_dict().items()}
        tensors |= {f"objective.{name}": tensor for name, tensor in objective.state().items()}
        for number, parameter in enumerate(self.parameters):
            buffer = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{number}"] = buffer
        tensors["random"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        kind, words, *rest = np.random.get_state(legacy=True)
        values = {
            "epoch": self.epoch,
            "step": self.step,
            "sums": {key: float(total) for key, total in self.sums.items()},
            "history": self.history,
            "random": {"python": random.getstate(), "numpy": [kind, np.asarray(words).tolist(), *rest]},
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        self.checkpoints.save(self.epoch * self.plan.steps + self.step, tensors, values)

    def restore(self) -> bool:
        """Fill everything from the newest checkpoint; False if there is none."""
        if self.checkpoints is None:
            return False
        newest, ranks = self.checkpoints.latest(), self.ranks
        seen = ranks.exchange(newest and (newest[1]["epoch"], newest[1]["step"]))
        if len(set(seen)) > 1:
            raise RunError(
                f"{self.checkpoints.folder}: ranks do not see the same checkpoints",
                hint="put the run directory on a file system that all hosts share",
            )
        if newest is None:
            return False
        tensors, values = newest
        net = {name[4:]: tensor for name, tensor in tensors.items() if name.startswith("net.")}
        self.objective.net.load_state_dict(net)
        for name, tensor in self.objective.state().items():
            tensor.copy_(tensors[f"objective.{name}"])
        self.objective.restored()
        for number, parameter in enumerate(self.parameters):
            buffer = tensors.get(f"momentum.{number}")
            if buffer is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.to(parameter.device)
        torch.set_rng_state(tensors["random"])
        if torch.cuda.is_available() and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
        version, words, gauss = values["random"]["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(tuple(values["random"]["numpy"]))
        if values["scaler"] is not None and ranks.accelerator.scaler is not None:
            ranks.accelerator.scaler.load_state_dict(values["scaler"])
        self.epoch, self.step = values["epoch"], values["step"]
        self.sums, self.history = values["sums"], values["history"]
        return True


def learning_rate(step: int, *, steps_per_epoch: int, schedule: Schedule) -> float:
    """The rate of a step, counted from 0 over all epochs.

    Warm-up rises linearly and reaches the peak at its last step; the cosine falls from the peak
    towards 0 over the remaining steps.

    >>> from capro.config import Schedule
    >>> plan = Schedule(epochs=4, lr=1.0, warmup_epochs=2)
    >>> [round(learning_rate(s, steps_per_epoch=1, schedule=plan), 3) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warm = min(schedule.warmup_epochs, schedule.epochs) * steps_per_epoch
    if step < warm:
        return schedule.lr * (step + 1) / warm
    rest = max(1, schedule.epochs * steps_per_epoch - warm)
    return schedule.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / rest))
