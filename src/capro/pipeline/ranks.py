"""Launched ranks (`torchrun`, `accelerate launch`): who this process is, and what ranks exchange by accelerate.

With one rank every method of `Ranks` is the identity. Gradients are averaged by one flat all-reduce after
the backward pass instead of a DDP wrapper: heads that a setting switches off, an encoder that is
frozen for some epochs and mix-up's second forward need no special case that way.

Torch is imported where it is needed: every command asks here whether it may print.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from capro.config import Settings
from capro.errors import CaproError, ConfigError, RankError, RunError, first_line

if TYPE_CHECKING:
    from torch import Tensor, nn

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def process_count() -> int:
    """Number of processes that the launcher has started together."""
    if not all(os.environ.get(name, "").isdigit() for name in _NAMES):
        return 1
    return int(os.environ["WORLD_SIZE"])


def process_rank() -> int:
    """This process's number among them."""
    return int(os.environ["RANK"]) if process_count() > 1 else 0


def is_main_process() -> bool:
    """Whether this process writes files and prints."""
    return process_rank() == 0


def leave(code: int) -> NoReturn:
    """End this process, which is one of several, without what Python does at its end.

    A thread of the process group (Gloo) may still hold a tensor of the last exchange. When it lets go of it while
    the interpreter ends, it waits for a lock that is gone, and the process aborts though its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Ranks:
    """This rank among others."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.index: int = accelerator.process_index
        self.count: int = accelerator.num_processes
        self.training = False

    @property
    def main(self) -> bool:
        """Whether this rank writes files."""
        return self.index == 0

    def gather(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """All ranks' rows in rank order, (b_r, ...) -> (sum of sizes, ...); ``sizes`` of every rank."""
        if self.count == 1:
            return rows
        import torch

        widest = max(sizes)
        padded = rows.new_zeros((widest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered: Tensor = self.accelerator.gather(padded)  # (ranks * widest, ...)
        parts = torch.split(gathered, widest)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their mean over the ranks."""
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._replace(grads, lambda flat: self.accelerator.reduce(flat, reduction="mean"))

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Fill tensors with the main rank's: batch statistics differ, since no rank sees all."""
        from accelerate.utils import broadcast

        self._replace([tensor for tensor in tensors if tensor.is_floating_point()], broadcast)

    def _replace(self, tensors: list[Tensor], exchange: Callable[[Tensor], Tensor]) -> None:
        """Fill tensors with what an exchange makes of all their numbers in a row."""
        if self.count == 1 or not tensors:
            return
        import torch

        flat = exchange(torch.cat([tensor.flatten() for tensor in tensors]))
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def exchange(self, value: Any = None, *, error: Exception | None = None) -> list[Any]:
        """The values of all ranks, in their order; where one has failed, all stop.

        Raises:
            RankError: On every rank, with the message of the first that failed.
        """
        if self.count == 1:
            return [value]
        from accelerate.utils import gather_object

        failure = None
        if isinstance(error, CaproError):
            failure = (str(error), error.hint)
        elif error is not None:
            failure = (f"unexpected {type(error).__name__}: {error}", "")
        gathered = gather_object([(value, failure)])
        for rank, (_, failed) in enumerate(gathered):
            if failed:
                raise RankError(f"rank {rank}: {failed[0]}", rank=rank, hint=failed[1])
        return [each for each, _ in gathered]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work in which a failure of one rank stops all of them.

        Ranks wait for each other in `exchange` alone, so that the one that fails can report it there. While
        ``training`` is set they exchange tensors, and notice when its process ends.
        """
        self.training = False
        try:
            yield
        except (RankError, LostRank):
            raise
        except Exception as error:
            if _is_lost_connection(error):
                raise LostRank(
                    f"another process of this run has ended or cannot be reached ({first_line(error)})",
                    hint="read its message or that of the launcher, then give the same command again: "
                    "it continues where it stopped",
                ) from error
            if not self.training:
                self._stop_others(error)
            raise
        finally:
            self.training = False

    def _stop_others(self, error: Exception) -> None:
        """Others stop with the error; so does this rank where one before it has failed as well."""
        try:
            self.exchange(error=error)
        except RankError as first:
            if first.rank != self.index:
                raise
        except RuntimeError:
            pass  # they are gone already


class LostRank(RunError):
    """The process of another rank is gone."""


def _is_lost_connection(error: Exception) -> bool:
    """Whether an error of torch says that another rank cannot be reached."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, RuntimeError) and ("DistError" in kinds or "gloo" in str(error))


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
        cpu=process_count() > 1 and not _has_device(),  # else accelerate starts no group of CPUs
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=None if tracker == "none" or folder is None else tracker,
        project_dir=None if folder is None else str(folder),
        kwargs_handlers=[patience],
    )
    if accelerator.num_processes != process_count():
        raise RunError(
            f"{process_count()} processes were launched, but each sees {accelerator.num_processes}",
            hint="launch with `torchrun --nproc_per_node N -m capro ...` or `accelerate launch`",
        )
    return Ranks(accelerator)


def _has_device() -> bool:
    """Whether each rank can have a device of its own; MPS does not count."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    return device is not None and device.type != "mps"


def _precision() -> str:
    """Half precision only where the hardware is fast at it: bf16 on a CPU is a hundred times slower."""
    import torch

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
