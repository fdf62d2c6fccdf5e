"""What tests give to workers of Ray; it imports little, since each worker imports it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from capro.errors import DataError
from capro.pipeline import shards


@dataclass(frozen=True)
class Doomed:
    """Work of which one node does one item, and does not end the second; others wait until it has begun."""

    work: Callable[[Any], Any]
    notes: Path
    node: str

    def __call__(self, item: Any) -> Any:
        if ray.get_runtime_context().get_node_id() != self.node:
            shards.wait_until((self.notes / "second").exists, "the other node does nothing")
        elif (self.notes / "first").exists():
            (self.notes / "second").touch()
            time.sleep(60)  # until it is killed
        found = self.work(item)
        (self.notes / "first").touch()
        return found


def refuse(item: int) -> int:
    if item == 1:
        raise DataError("image 7 is broken", hint="mend it")
    return item


def impatient(work: Callable[[Any], Any], item: Any) -> Any:
    shards.PATIENCE = 0.1
    return work(item)


def ones(begin: int, end: int, _step: object) -> np.ndarray:
    return np.ones((end - begin, 1), np.float32)


@dataclass(frozen=True)
class DieOnce:
    """Work that ends its process the first time."""

    mark: Path

    def __call__(self, item: int) -> int:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item


@dataclass(frozen=True)
class Begin:
    """Work that notes its process, and does not end while anybody waits."""

    folder: Path

    def __call__(self, item: int) -> None:
        (self.folder / str(os.getpid())).touch()
        time.sleep(60)
