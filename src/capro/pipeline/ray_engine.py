"""Ray as an engine: the parts of a stage are tasks on a cluster. The only module that imports Ray.

This process, the driver, holds the lock of the run and writes the artefacts. Tasks write shards, or return small
results. Ray repeats a task whose process or node is gone.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

# Read when Ray is imported: nothing is reported to its makers, and of several tasks that fail one is shown.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
import ray
from ray import cloudpickle, exceptions

from capro import __version__
from capro.errors import ConfigError, RunError, first_line
from capro.pipeline.engine import Engine

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 15  # of a task whose process or node is gone, by Ray
REACH = 10  # seconds until a cluster must answer
AHEAD = 3  # tasks that wait or run for each one that can run
# one thread a task; one that waits gives its core to others
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


@contextmanager
def connected(address: str | None) -> Iterator[RayEngine]:
    """An engine on a cluster: ``auto``, ``HOST:PORT``; ``local`` or None starts one on this machine.

    When the block ends the connection ends, and with it every task and a cluster that was started here.
    """
    option = f"--address {address}" if address else "--engine ray"
    with redirect_stdout(sys.stderr):  # Ray prints what it sees of lost nodes; results alone go to stdout
        _connect(address, option)
        try:
            if not _slots("CPU"):
                raise RunError(
                    f"{option}: no node of the cluster has a CPU for tasks",
                    hint="add one: `ray start --address HOST:PORT` on another machine",
                )
            yield RayEngine(os.getcwd())
        finally:
            ray.shutdown()


def _connect(address: str | None, option: str) -> None:
    try:
        if address not in (None, "auto", "local"):
            _reach(address)
        ray.init(
            address=address or "local",
            runtime_env={"env_vars": WORKER_ENVIRONMENT},
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({"include_dashboard": False} if address in (None, "local") else {}),
        )
    except (RuntimeError, ValueError, OSError, OverflowError) as error:  # of Ray, or of the connection
        raise ConfigError(
            f"{option}: {first_line(error)}",
            hint="start a cluster with `ray start --head`, or leave --address out to start Ray on this machine",
        ) from None


def _reach(address: str) -> None:
    """Refuse an address where nobody answers: Ray itself would try for ten minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--address {address}: not an address", hint="give auto, local or HOST:PORT")
    socket.create_connection((host, int(port)), timeout=REACH).close()


def _slots(kind: str) -> int:
    return int(ray.cluster_resources().get(kind, 0))


@ray.remote  # type: ignore[untyped-decorator]
def _task(version: str, folder: str, work: bytes, part: Any) -> Any:
    """One part, on a worker. Relative paths are those of the driver."""
    from capro import __version__ as here  # the node's: Ray sends this function with the driver's globals

    if version != here:
        raise RunError(
            f"node {platform.node()} has capro {here}, this run {version}",
            hint="install the same version on every node",
        )
    with suppress(OSError):
        os.chdir(folder)
    return cloudpickle.loads(work)(part)


@dataclass(frozen=True)
class RayEngine(Engine):
    """Parts as tasks of Ray: one CPU each, and one GPU where the work wants it and the cluster has any.

    Attributes:
        folder: The working directory of this process.
    """

    folder: str
    remote = True
    threads = 1  # a task has one CPU

    def map(self, work: Callable[[T], R], parts: Iterable[T], *, gpu: bool = False) -> Iterator[R]:
        """As `capro.pipeline.engine.Engine.map`; an error of a task is raised here as it was there."""
        kind = "GPU" if gpu and _slots("GPU") else "CPU"
        task = _task.options(num_cpus=1, num_gpus=int(kind == "GPU"), max_retries=RETRIES)
        sent = ray.put(cloudpickle.dumps(work))  # read by a task itself, so that its error is the task's

        # After an error or Ctrl-C the others end with the connection. They are not cancelled one by one:
        # `ray.cancel` of a task that is just being sent has ended this process (Ray 2.60).
        waiting: deque[Any] = deque()
        for part in parts:
            waiting.append(task.remote(__version__, self.folder, sent, part))
            while len(waiting) >= AHEAD * max(1, _slots(kind)):
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())


def _result(reply: Any) -> Any:
    """What a task returned."""
    try:
        return ray.get(reply)
    except exceptions.RayTaskError as error:
        raise _as_raised(error) from None
    except exceptions.RayError as error:  # it was lost, though Ray repeats such a task
        raise RunError(
            f"Ray cannot do a task: {type(error).__name__}: {first_line(error)}",
            hint="check the cluster (`ray status`) and the memory of its nodes, then give the same command again: "
            "it continues where it stopped",
        ) from None


def _as_raised(error: Any) -> BaseException:
    """The error that a task raised."""
    cause = error.cause
    # the second is Ray's, where it cannot import this module on a worker
    if isinstance(cause, ModuleNotFoundError) or "failed to import on the worker" in str(cause):
        last = str(cause).strip().splitlines()[-1].removeprefix("ModuleNotFoundError: ")
        return RunError(
            f"a node of the cluster cannot do the work: {last}",
            hint="install the same version of capro, with the same extras, on every node",
        )
    return cause if isinstance(cause, BaseException) else error
