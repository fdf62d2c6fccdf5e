"""One process at a time changes a run: a lock in its folder, or in its object store."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from capro.errors import CaproError, RunError
from capro.pipeline.files import writing
from capro.stores import ObjectPath

LOCK = ".lock"


def is_locked(folder: Path) -> bool:
    """Whether a process changes a folder now."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, blocking=False):
            return False
    except Timeout:
        return True


@contextmanager
def alone_in(folder: Path, doing: str) -> Iterator[None]:
    """One process at a time changes a folder; the lock dies with its process.

    Within a block that has the lock its thread may take it again.
    """
    lock = FileLock(folder.resolve() / LOCK, blocking=False, is_singleton=True)
    with writing(folder / LOCK):
        try:
            lock.acquire()
        except Timeout:
            raise RunError(
                f"{folder}: another {doing}", hint="wait for it, or give another folder to --run"
            ) from None
    try:
        yield
    finally:
        lock.release()


STORE_LOCK = ".lock.json"
LEASE = 120.0  # seconds
BEAT = 30.0
TRIES = 3


class StoreLock:
    """The lock of one working copy.

    Args:
        file: The object.
        copy: Identifies the working copy: whoever asks has locked it on this machine, so that an owner of the same
            copy has ended.
        shown: The run, for messages.
        doing: What its owner does, for messages.
    """

    def __init__(self, file: ObjectPath, copy: str, *, shown: str, doing: str) -> None:
        self._file, self._copy, self._shown, self._doing = file, copy, shown, doing
        self._token = ""
        self._end = threading.Event()
        self._renewed = 0.0
        self._lost = ""

    def take(self) -> None:
        """Become the owner, or say who is."""
        self._token, self._lost = secrets.token_hex(8), ""
        for _ in range(TRIES):
            held = self._read()
            if held is not None and not self._ended(held):
                raise self._refusal(held)
            if held is not None:
                self._file.remove()
            with suppress(FileExistsError):  # our own, after an error that passed; or another's: asked below
                self._write(new=True)
            if (self._read() or {}).get("token") == self._token:
                self._renewed = time.monotonic()
                self._end = threading.Event()
                threading.Thread(target=self._renew, args=(self._end,), daemon=True).start()
                return
        raise self._refusal(self._read() or {})

    def check(self) -> None:
        """Stop where another process has taken the lock, or it could not be renewed in time."""
        held = self._read() or {}
        if held.get("token") != self._token:
            self._lost = self._lost or f"the lock was taken by {_who(held)}"
        if self._lost:
            raise RunError(
                f"{self._shown}: {self._lost}, so nothing more is uploaded",
                hint="wait for the other process, then give the same command again",
            )

    def release(self) -> None:
        """Leave it to others; one that cannot be removed now ends by itself."""
        self._end.set()
        with suppress(CaproError, OSError):
            if (self._read() or {}).get("token") == self._token:
                self._file.remove()

    def _renew(self, end: threading.Event) -> None:
        while not end.wait(BEAT):
            try:
                if (self._read() or {}).get("token") != self._token:
                    return  # `check` says so before anything is uploaded
                if not end.is_set():
                    self._write()
                self._renewed = time.monotonic()
            except (CaproError, OSError):
                if time.monotonic() - self._renewed > LEASE:
                    self._lost = "its lock could not be renewed"
                    return

    def _ended(self, held: dict[str, Any]) -> bool:
        """Whether an owner is known to be gone."""
        until = held.get("until")
        return held.get("copy") == self._copy or not isinstance(until, int | float) or until < time.time()

    def _refusal(self, held: dict[str, Any]) -> RunError:
        until = held.get("until", 0)
        left = max(1, round(until - time.time())) if isinstance(until, int | float) else 1
        return RunError(
            f"{self._shown}: another {self._doing}: {_who(held)}",
            hint=f"wait for it, or give another address to --run; if that process has ended, its lock ends in {left} s",
        )

    def _read(self) -> dict[str, Any] | None:
        """What the lock says; None where there is none, empty where it cannot be read."""
        try:
            found = json.loads(self._file.read_now())
        except (FileNotFoundError, IsADirectoryError):
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, *, new: bool = False) -> None:
        now = time.time()
        owner = {"who": _user(), "host": socket.gethostname(), "process": os.getpid(), "time": round(now, 3)}
        document = {**owner, "until": now + LEASE, "copy": self._copy, "token": self._token}
        self._file.write_bytes(json.dumps(document).encode(), new=new)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user name
        return "somebody"


def _who(held: dict[str, Any]) -> str:
    """The owner of a lock in words."""
    if "host" not in held:
        return "an unknown process"
    seen = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(held.get("time", 0)))
    return f"{held.get('who')} on {held['host']}, process {held.get('process')}, last seen {seen}"
