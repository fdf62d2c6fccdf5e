"""The one loop. Every training of capro runs through ``fit``, top to bottom.

A run killed at any moment and started again ends bit-identical on a CPU: batches, views and the
learning rate are functions of (seed, epoch, step), and all else is in the checkpoint.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.config import Schedule
from capro.errors import ConfigError, RunError
from capro.method import losses
from capro.run import progress
from capro.run.artefacts import NOT_FINITE, write_json
from capro.run.fingerprints import seed_for
from capro.run.progress import Figures
from capro.run.ranks import Ranks
from capro.train.batches import Batch, Inputs, Plan, load_batches, slices
from capro.train.checkpoints import Checkpoints
from capro.train.objective import Objective
from capro.train.optim import learning_rate

SHOWN_IDS = 5


@dataclass
class Position:
    """Where a training is: the next step to do, sums of the running epoch, and past epochs."""

    epoch: int = 0
    step: int = 0  # within the epoch
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def fit(
    objective: Objective,
    inputs: Inputs,
    positions: NDArray[np.int64],
    schedule: Schedule,
    *,
    name: str,
    seed: int,
    ranks: Ranks,
    ids: list[str],
    checkpoints: Checkpoints | None = None,
    checkpoint_minutes: float = 10.0,
    bar: progress.Bar = progress.silent,
    log: Callable[[dict[str, float], int], None] = lambda _values, _step: None,
) -> list[dict[str, float]]:
    """Train an objective; returns one row of figures per epoch.

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
        log: Told the figures of each epoch, with the step.
    """
    if not len(positions):
        return []
    plan = Plan(len(positions), schedule.batch_size, seed)
    _check_share(name, plan, ranks)
    parameters = objective.parameters()
    optimizer = torch.optim.SGD(
        parameters, lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
    )
    optimizer = ranks.accelerator.prepare_optimizer(optimizer)
    at = Position()
    resumed = checkpoints is not None and _restore(checkpoints, objective, parameters, optimizer, at, ranks)
    saved_at = time.monotonic()
    device = ranks.accelerator.device

    with bar(name, schedule.epochs * plan.steps) as advance:
        advance(at.epoch * plan.steps + at.step)
        while at.epoch < schedule.epochs:
            ranks.align(objective.net.buffers())
            objective.begin_epoch(at.epoch, resumed=resumed and at.step > 0)
            resumed = False
            batches = load_batches(
                inputs, plan, positions, epoch=at.epoch, first=at.step, keys=objective.keys,
                rank=ranks.index, ranks=ranks.count, device=device,
            )  # fmt: skip
            for batch in batches:
                done = at.epoch * plan.steps + at.step
                torch.manual_seed(seed_for(seed, "layers", done, ranks.index))  # dropout and such
                rate = learning_rate(done, steps_per_epoch=plan.steps, schedule=schedule)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                with ranks.accelerator.autocast():
                    terms = objective.terms(batch)
                    loss = losses.total(terms, objective.weights)
                figures = _figures({"loss": loss, **terms}, ranks)
                _check_finite(name, figures, at, batch, ids, positions, checkpoints, ranks)
                optimizer.zero_grad()
                ranks.accelerator.backward(loss)
                ranks.average_gradients(parameters)
                if ranks.accelerator.scaler is None:  # fp16's own scaler skips such a step
                    slope = {"gradient": _norm(parameters)}
                    _check_finite(name, slope, at, batch, ids, positions, checkpoints, ranks)
                optimizer.step()
                objective.after(batch)

                at.step += 1
                for key, value in figures.items():
                    at.sums[key] = at.sums.get(key, 0.0) + value
                advance(1, figures=Figures(at.epoch, schedule.epochs, rate, figures, at.history))
                due = time.monotonic() - saved_at > 60 * checkpoint_minutes
                if checkpoints and due and at.step < plan.steps:  # the end of an epoch saves anyway
                    _save(checkpoints, objective, parameters, optimizer, at, plan, ranks)
                    saved_at = time.monotonic()
            means = {key: total / plan.steps for key, total in at.sums.items()}
            row = {"epoch": float(at.epoch), "lr": rate, **means, **objective.statistics()}
            at.history.append(row)
            at.epoch, at.step, at.sums = at.epoch + 1, 0, {}
            log(row, at.epoch * plan.steps)
            if checkpoints:
                _save(checkpoints, objective, parameters, optimizer, at, plan, ranks)
                saved_at = time.monotonic()
    return at.history


def _figures(terms: dict[str, Tensor], ranks: Ranks) -> dict[str, float]:
    """Loss terms of the global batch: the mean over ranks, since divisors are global."""
    values = torch.stack([term.detach().float() for term in terms.values()])
    everyones = ranks.gather(values[None], [1] * ranks.count)  # (ranks, terms)
    return dict(zip(terms, everyones.mean(dim=0).tolist(), strict=True))


def _norm(parameters: list[nn.Parameter]) -> float:
    """Norm of all gradients; the same on every rank, since they are averaged."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return float(torch.stack(torch._foreach_norm(grads)).norm()) if grads else 0.0


# --- guard rails ----------------------------------------------------------------------------------


def _check_share(name: str, plan: Plan, ranks: Ranks) -> None:
    smallest = plan.rows // plan.steps
    if smallest < ranks.count:
        raise ConfigError(
            f"{name}: a batch of {smallest} samples cannot be shared by {ranks.count} ranks",
            hint="launch fewer processes, or raise the batch size",
        )


def _check_finite(
    name: str,
    figures: dict[str, float],
    at: Position,
    batch: Batch,
    ids: list[str],
    positions: NDArray[np.int64],
    checkpoints: Checkpoints | None,
    ranks: Ranks,
) -> None:
    """Stop where a figure is NaN or Inf, with the step and the batch's samples.

    Samples whose input is not finite are named first: they are the cause.
    """
    bad = [key for key, value in figures.items() if not math.isfinite(value)]
    if not bad:
        return
    sizes = [part.stop - part.start for part in slices(len(batch.everyone), ranks.count)]
    whole = ranks.gather(torch.isfinite(batch.query.flatten(1)).all(dim=1).long(), sizes)
    broken = whole.cpu().numpy() == 0
    everyone = [ids[i] for i in positions[batch.everyone]]
    blamed = [one for one, guilty in zip(everyone, broken, strict=True) if guilty] or everyone
    message = f"{', '.join(bad)} is not finite in epoch {at.epoch}, step {at.step}"
    told = ""
    if checkpoints is not None:
        file = checkpoints.folder.parent / NOT_FINITE
        told = f" (all in {file})"
        if ranks.main:
            place = {"epoch": at.epoch, "step": at.step, "figures": bad}
            write_json(file, {**place, "samples": everyone, "broken_inputs": int(broken.sum())})
    more = f" and {len(blamed) - SHOWN_IDS} more" if blamed[SHOWN_IDS:] else ""
    raise RunError(
        f"{name}: {message}; samples {', '.join(blamed[:SHOWN_IDS])}{more}{told}",
        hint="lower the learning rate (--set train.lr=... or pretrain.lr=...), or look at the samples",
    )


# --- checkpoints ----------------------------------------------------------------------------------


def _save(
    checkpoints: Checkpoints,
    objective: Objective,
    parameters: list[nn.Parameter],
    optimizer: Any,
    at: Position,
    plan: Plan,
    ranks: Ranks,
) -> None:
    """The main rank writes; nobody waits for it, so that ranks may disagree about the time."""
    if not ranks.main:
        return
    tensors = {f"net.{name}": tensor for name, tensor in objective.net.state_dict().items()}
    tensors |= {f"objective.{name}": tensor for name, tensor in objective.state().items()}
    for number, parameter in enumerate(parameters):
        buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{number}"] = buffer
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    kind, words, *rest = np.random.get_state(legacy=True)
    scaler = ranks.accelerator.scaler
    values = {
        "epoch": at.epoch,
        "step": at.step,
        "sums": at.sums,
        "history": at.history,
        "random": {"python": random.getstate(), "numpy": [kind, np.asarray(words).tolist(), *rest]},
        "scaler": None if scaler is None else scaler.state_dict(),
    }
    checkpoints.save(at.epoch * plan.steps + at.step, tensors, values)


def _restore(
    checkpoints: Checkpoints,
    objective: Objective,
    parameters: list[nn.Parameter],
    optimizer: Any,
    at: Position,
    ranks: Ranks,
) -> bool:
    """Fill everything from the newest checkpoint; False if there is none."""
    found = checkpoints.latest()
    place = (-1, -1) if found is None else (found[1]["epoch"], found[1]["step"])
    mine = torch.tensor([place], device=ranks.accelerator.device)
    if not bool((ranks.gather(mine, [1] * ranks.count) == mine).all()):
        raise RunError(
            f"{checkpoints.folder}: ranks do not see the same checkpoints",
            hint="put the run directory on a file system that all hosts share",
        )
    if found is None:
        return False
    tensors, values = found
    net = {name[4:]: tensor for name, tensor in tensors.items() if name.startswith("net.")}
    objective.net.load_state_dict(net)
    for name, tensor in objective.state().items():
        tensor.copy_(tensors[f"objective.{name}"])
    objective.restored()
    for number, parameter in enumerate(parameters):
        buffer = tensors.get(f"momentum.{number}")
        if buffer is not None:
            optimizer.state[parameter]["momentum_buffer"] = buffer.to(parameter.device)
    torch.set_rng_state(tensors["random"])
    if torch.cuda.is_available() and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"])
    version, words, gauss = values["random"]["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(values["random"]["numpy"]))
    if values["scaler"] is not None and ranks.accelerator.scaler is not None:
        ranks.accelerator.scaler.load_state_dict(values["scaler"])
    at.epoch, at.step = values["epoch"], values["step"]
    at.sums, at.history = values["sums"], values["history"]
    return True
