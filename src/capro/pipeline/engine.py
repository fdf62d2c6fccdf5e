"""Engines: who does work that is split into parts: this process, tasks on a cluster, or launched ranks.

Tasks are `capro.pipeline.ray_engine`, ranks `capro.pipeline.rank_engine`.

The parts and their values are the same for every engine. Which engine works is no setting: it is in no
fingerprint, and a run may go on under another one.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from capro.errors import ConfigError, did_you_mean
from capro.pipeline import processes

T = TypeVar("T")
R = TypeVar("R")
ENGINES = ("process", "ray")


class Engine(Protocol):
    """Does work that is split into parts.

    Attributes:
        remote: Whether other processes do it. What they get must be picklable, and they see the files of the run.
        threads: How many threads a process may use for an item.
    """

    @property
    def remote(self) -> bool: ...

    @property
    def threads(self) -> int: ...

    def map(self, work: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> Iterator[R]:
        """What the work makes of each item, in order; items are taken as they are needed.

        Args:
            work: Is sent once; the same object does many items.
            items: Small ones: each is sent with its task.
            gpu: Whether the work runs on a GPU where there is one.
        """
        ...


class LocalEngine:
    """This process, one item at a time."""

    remote = False

    @property
    def threads(self) -> int:
        """All cores."""
        return os.cpu_count() or 1

    def map(self, work: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> Iterator[R]:
        """As `Engine.map`."""
        del gpu  # the work finds the device itself
        return map(work, items)


LOCAL = LocalEngine()


class Portable:
    """Base of a frozen dataclass that is sent to other processes.

    Its fields are sent, but not those with ``compare=False``, which belong to this process, and not what it
    has loaded (cached properties). A process that gets equal fields again gets the object that it has: it loads
    an encoder once, however many tasks it does.
    """

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        sent = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}  # type: ignore[arg-type]
        return _received, (pickle.dumps((type(self), sent)),)


@lru_cache(maxsize=2)  # what does a task, and what it shares with others: an encoder
def _received(sent: bytes) -> Any:
    kind, values = pickle.loads(sent)
    return kind(**values)


def check_engine(name: str, address: str | None) -> None:
    """Refuse an engine that cannot be had, before anything is written.

    Args:
        name: One of `ENGINES`.
        address: Of a Ray cluster.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine {name!r}", hint=did_you_mean(name, ENGINES))
    if name != "ray" and address is not None:
        raise ConfigError(
            f"--address {address}: only the engine ray has one",
            hint="add --engine ray, or leave --address out",
        )
    if name != "ray":
        return
    if processes.count() > 1:
        raise ConfigError(
            f"--engine ray in one of {processes.count()} launched processes",
            hint="start one process without torchrun or accelerate: Ray starts the others",
        )
    if find_spec("ray") is None:
        raise ConfigError("--engine ray needs the package 'ray'", hint='pip install "capro[ray]"')


@contextmanager
def engine_of(name: str, address: str | None) -> Iterator[Engine]:
    """The engine that a command names, until the block ends.

    Args:
        name: One of `ENGINES`.
        address: Of a Ray cluster: ``auto`` or ``HOST:PORT``; ``local`` or None starts one on this machine.
    """
    check_engine(name, address)
    if name == "process":
        yield LOCAL
        return
    from capro.pipeline.ray_engine import connected

    with connected(address) as engine:
        yield engine
