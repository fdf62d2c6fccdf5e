"""Engines do work that is split into parts: in this process, in launched ranks, or as tasks of a cluster.

Tasks are in `capro.pipeline.ray_engine`, the only module that imports Ray. Parts and results are the same for
every engine. The engine is not a setting: it is in no fingerprint, and a run may continue under another one.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeVar

from capro.errors import ConfigError, did_you_mean
from capro.pipeline.ranks import Ranks, process_count

T = TypeVar("T")
R = TypeVar("R")
ENGINES = ("process", "ray")


class Engine:
    """This process, one part at a time; other engines derive from it.

    Attributes:
        remote: Whether other processes work, too. What they get must be picklable, and they see the files of the run.
    """

    remote = False

    @property
    def threads(self) -> int:
        """How many threads a process may use for a part."""
        return os.cpu_count() or 1

    def map(self, work: Callable[[T], R], parts: Iterable[T], *, gpu: bool = False) -> Iterator[R]:
        """The results of the work for each part, in order; parts are taken as they are needed.

        Args:
            work: Is sent once; the same object does many parts.
            parts: Small: each is sent to the process that does it. Large results go to files.
            gpu: Whether the work runs on a GPU where there is one.
        """
        del gpu  # the work finds the device itself
        return map(work, parts)


THIS_PROCESS = Engine()


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


# --- launched ranks -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankEngine(Engine):
    """All launched ranks; the main one has this engine, while the others `serve`.

    Parts are done in rounds, one part a rank. Ranks exchange by `Ranks.exchange` alone, so that one that fails
    reports it to the others and all of them stop.

    Attributes:
        ranks: The launched processes.
    """

    ranks: Ranks
    remote = True

    @property
    def threads(self) -> int:
        """A rank's share of this machine's cores."""
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.count))
        return max(1, (os.cpu_count() or 1) // local)

    def map(self, work: Callable[[T], R], parts: Iterable[T], *, gpu: bool = False) -> Iterator[R]:
        """As `Engine.map`; must be read to its end, since the other ranks wait for it."""
        del gpu  # each rank has its own device
        waiting = iter(parts)

        def send(new_work: Any) -> list[T]:
            batch = list(islice(waiting, self.ranks.count))
            if batch:  # the others begin, while this rank still uses the results of the last round
                self.ranks.exchange((new_work, batch[1:]))
            return batch

        batch = send(work)
        while batch:
            results = self.ranks.exchange([work(batch[0])])
            size, batch = len(batch), send(None)
            yield from (each[0] for each in results[:size])


def serve(ranks: Ranks) -> None:
    """Do this rank's parts of every `RankEngine.map` of the main one, until it sends None."""
    work: Callable[[Any], Any] | None = None
    while (sent := ranks.exchange()[0]) is not None:
        new_work, batch = sent
        work = new_work or work
        assert work is not None, "the first parts come with the work"
        own = batch[ranks.index - 1 : ranks.index]
        ranks.exchange([work(part) for part in own])


def lead(ranks: Ranks, work: Callable[[Engine], R]) -> R | None:
    """Work that the main rank leads; None on the others, which do the parts that it gives its engine."""
    if not ranks.main:
        serve(ranks)
        return None
    result = work(RankEngine(ranks))
    ranks.exchange()  # the others end
    return result


# --- from the command line ------------------------------------------------------------------------


def check_engine(name: str, address: str | None) -> None:
    """Refuse an engine that is not available, before anything is written.

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
    if process_count() > 1:
        raise ConfigError(
            f"--engine ray in one of {process_count()} launched processes",
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
        yield THIS_PROCESS
        return
    from capro.pipeline.ray_engine import connected

    with connected(address) as engine:
        yield engine
