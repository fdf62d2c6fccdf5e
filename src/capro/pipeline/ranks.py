"""Several ranks as one: gathering rows and averaging gradients through accelerate.

With one rank every function is the identity. Gradients are averaged by one flat all-reduce after
the backward pass instead of a DDP wrapper: heads that a setting switches off, an encoder that is
frozen for some epochs and mix-up's second forward need no special case that way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capro.config import Settings
from capro.errors import CaproError, ConfigError, RankError, RunError, first_line
from capro.pipeline import processes


class Ranks:
    """This rank among others."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.index: int = accelerator.process_index
        self.count: int = accelerator.num_processes
        self.exchanging = False

    @property
    def main(self) -> bool:
        """Whether this rank writes files."""
        return self.index == 0

    def gather(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """All ranks' rows in rank order, (b_r, ...) -> (sum of sizes, ...); ``sizes`` of every rank."""
        if self.count == 1:
            return rows
        widest = max(sizes)
        padded = rows.new_zeros((widest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered: Tensor = self.accelerator.gather(padded)  # (ranks * widest, ...)
        parts = torch.split(gathered, widest)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their mean over the ranks."""
        if self.count == 1:
            return
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not grads:
            return
        flat = torch.cat([grad.flatten() for grad in grads])
        flat = self.accelerator.reduce(flat, reduction="mean")
        place = 0
        for grad in grads:
            grad.copy_(flat[place : place + grad.numel()].view_as(grad))
            place += grad.numel()

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Fill tensors with the main rank's: batch statistics differ, since no rank sees all."""
        if self.count == 1:
            return
        from accelerate.utils import broadcast

        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not floats:
            return
        flat = broadcast(torch.cat([tensor.flatten() for tensor in floats]))
        for tensor, part in zip(floats, flat.split([t.numel() for t in floats]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def meet(self, word: Any = None, *, error: Exception | None = None) -> list[Any]:
        """What every rank brings, once all are here; where one brings an error, all stop.

        Raises:
            RankError: On every rank, with the message of the first that failed.
        """
        if self.count == 1:
            return [word]
        from accelerate.utils import gather_object

        failure = None
        if isinstance(error, CaproError):
            failure = (str(error), error.hint)
        elif error is not None:
            failure = (f"unexpected {type(error).__name__}: {error}", "")
        everyones = gather_object([(word, failure)])
        for rank, (_, failed) in enumerate(everyones):
            if failed:
                raise RankError(f"rank {rank}: {failed[0]}", rank=rank, hint=failed[1])
        return [brought for brought, _ in everyones]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work in which a failure of one rank stops all of them.

        Ranks meet by `meet` alone, so that the one that fails finds the others at a meeting; while
        ``exchanging`` is set they exchange tensors, and notice when its process ends.
        """
        self.exchanging = False
        try:
            with lost_ranks():
                yield
        except (RankError, LostRank):
            raise
        except Exception as error:
            if not self.exchanging:
                self._stop_others(error)
            raise
        finally:
            self.exchanging = False

    def _stop_others(self, error: Exception) -> None:
        """Others stop with the error; so does this rank where one before it has failed as well."""
        try:
            self.meet(error=error)
        except RankError as first:
            if first.rank != self.index:
                raise
        except RuntimeError:
            pass  # they are gone already


class LostRank(RunError):
    """The process of another rank is gone."""


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Turn a broken connection to another rank into an error with a plain message."""
    try:
        yield
    except RuntimeError as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "DistError" not in kinds and "gloo" not in str(error):
            raise
        raise LostRank(
            f"another process of this run has ended or cannot be reached ({first_line(error)})",
            hint="read its message or that of the launcher, then give the same command again: "
            "it continues where it stopped",
        ) from error


# --- from the launcher ----------------------------------------------------------------------------


def ranks_of(settings: Settings, folder: Path | None = None) -> Ranks:
    """This process among those that ``accelerate launch`` or ``torchrun`` started."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    check_tracker(settings)
    tracker = settings.log.tracker
    wanted = settings.net.precision
    precision = _precision() if wanted == "auto" else wanted
    if precision == "fp16" and not _has_device():
        raise ConfigError("net.precision: fp16 needs a GPU", hint="--set net.precision=auto")
    # the main rank may work alone for hours (scan, match) while the others wait for it
    patience = InitProcessGroupKwargs(timeout=timedelta(days=7))
    accelerator = Accelerator(
        cpu=processes.count() > 1 and not _has_device(),  # else accelerate starts no group of CPUs
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=None if tracker == "none" or folder is None else tracker,
        project_dir=None if folder is None else str(folder),
        kwargs_handlers=[patience],
    )
    if accelerator.num_processes != processes.count():
        raise RunError(
            f"{processes.count()} processes were launched, but each sees {accelerator.num_processes}",
            hint="launch with `torchrun --nproc_per_node N -m capro ...` or `accelerate launch`",
        )
    return Ranks(accelerator)


def _has_device() -> bool:
    """Whether ranks can have a device of their own: a Mac's one is no such."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return found is not None and found.type != "mps"


def _precision() -> str:
    """Half precision only where the hardware is fast at it: bf16 on a CPU is a hundred times slower."""
    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


# --- trackers -------------------------------------------------------------------------------------

Log = Callable[[dict[str, float], int], None]


def check_tracker(settings: Settings) -> None:
    """Refuse a tracker whose package is missing: accelerate would leave it out silently."""
    wanted = settings.log.tracker
    if wanted == "none":
        return
    from accelerate.tracking import get_available_trackers

    if wanted not in {str(kind.value) for kind in get_available_trackers()}:
        package = "capro[trackers]" if wanted == "tensorboard" else wanted
        raise ConfigError(
            f"log.tracker: the package of '{wanted}' is not installed",
            hint=f"pip install '{package}', or --set log.tracker=none",
        )


@contextmanager
def tracked(ranks: Ranks, name: str, settings: Settings, *, wanted: bool = True) -> Iterator[Log]:
    """A function that sends an epoch's figures to the tracker, if one was asked for.

    TensorBoard gets one folder per stage in the run's ``log``.
    """
    tracker, accelerator = settings.log.tracker, ranks.accelerator
    if tracker == "none" or not wanted:
        yield lambda _values, _step: None
        return
    accelerator.init_trackers(name if tracker == "tensorboard" else "capro")
    try:
        yield lambda values, step: accelerator.log(
            {f"{name}/{key}": value for key, value in values.items()}, step=step
        )
    finally:  # not accelerator.end_training(): it also ends the process group
        for each in accelerator.trackers:
            each.finish()
