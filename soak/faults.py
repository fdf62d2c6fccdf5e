"""Faults at every write of a process: it is killed, or the call fails, at the k-th moment.

Installed by the attacked process itself over the functions of Python through which capro writes, so that the product
has no hooks. A moment is the time before or after a call that opens a file for writing, flushes it to the disk,
renames, removes or makes something below one folder.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CALLS = ("replace", "rename", "fsync", "mkdir", "unlink", "remove", "rmdir")
FREE = ("unlink", "remove", "rmdir")  # a full disk still allows these


@dataclass(frozen=True)
class Fault:
    """What happens at which moment.

    Attributes:
        root: Only what is below this folder counts.
        kind: ``count`` lets everything pass, ``kill`` is SIGKILL, ``torn`` cuts a file that is not on the disk yet and
            kills, ``error`` makes the call fail, and every later one too.
        at: The number of the moment, from 1.
        code: Of ``error``.
        seed: Of the length at which a file is torn.
    """

    root: str
    kind: Literal["count", "kill", "torn", "error"] = "count"
    at: int = 0
    code: int = errno.ENOSPC
    seed: int = 0


class Faults:
    """Counts moments and strikes at one of them."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.moments = 0

    def install(self) -> None:
        """Replace Python's functions in this process."""
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        opened = self._watched_open(io.open)
        io.open = opened  # type: ignore[assignment]
        builtins.open = opened  # type: ignore[assignment]

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not self._ours(args[0], options):
                return real(*args, **options)
            self._before(name, args[0])
            value = real(*args, **options)
            self._moment(name)
            return value

        return call

    def _watched_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or not self._ours(file, options):
                return real(file, mode, *args, **options)
            self._before("open", file)
            value = real(file, mode, *args, **options)
            self._moment("open")
            return value

        return call

    def _ours(self, place: Any, options: dict[str, Any]) -> bool:
        if options.get("dir_fd") is not None or options.get("src_dir_fd") is not None:
            return True  # within a folder that is removed
        try:
            path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fspath(place)
        except (OSError, TypeError):
            return False
        return os.path.abspath(path).startswith(self.fault.root)

    def _before(self, name: str, place: Any) -> None:
        fault = self.fault
        if fault.kind == "error" and self.moments + 1 >= fault.at and name not in FREE:
            named = (
                () if isinstance(place, int) else (os.fspath(place),)
            )  # the kernel names no file for fsync
            raise OSError(fault.code, os.strerror(fault.code), *named)
        self._moment(name, place)

    def _moment(self, name: str, place: Any = None) -> None:
        self.moments += 1
        if self.moments != self.fault.at or self.fault.kind not in ("kill", "torn"):
            return
        if self.fault.kind == "torn" and name == "fsync" and isinstance(place, int):
            path = Path(os.readlink(f"/proc/self/fd/{place}"))
            if path.is_file() and (size := path.stat().st_size):
                os.truncate(path, random.Random(self.fault.seed).randrange(size))
        os.kill(os.getpid(), signal.SIGKILL)
