"""One process at a time changes a run: a lock in its folder, or in its object store."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
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
GRACE = 0.2  # seconds: another process may hold the lock for a moment, only to see whether it is free


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
    lock = FileLock(folder.resolve() / LOCK, timeout=GRACE, is_singleton=True)
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
TRIES = 3


class StoreLock:
    """The lock of a run in a store: an object that is created where there is none.

    It does not expire. A lock that a dead machine has left is deleted by hand; the refusal names the object.

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

    def take(self) -> None:
        """Become the owner, or say who is."""
        self._token = secrets.token_hex(8)
        owner = {
            "who": current_user(),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "time": round(time.time(), 3),
        }
        document = json.dumps({**owner, "copy": self._copy, "token": self._token}).encode()
        for _ in range(TRIES):
            held = self._read()
            if held and held.get("copy") != self._copy:
                raise self._refusal(held)
            if held is not None:  # of a dead process of this machine, or damaged
                self._file.remove()
            with suppress(FileExistsError):  # our own, after an error that passed; or another's: read below
                self._file.write_bytes(document, new=True)
            if self._is_ours():
                return
        raise self._refusal(self._read() or {})

    def check(self) -> None:
        """Stop where another process has taken the lock."""
        if not self._is_ours():
            raise RunError(
                f"{self._shown}: the lock was taken by {_described(self._read() or {})}, so nothing more is uploaded",
                hint="wait for the other process, then give the same command again",
            )

    def release(self) -> None:
        """Leave it to others; one that cannot be removed now is removed by the next process of this machine."""
        with suppress(CaproError, OSError):
            if self._is_ours():
                self._file.remove()

    def _is_ours(self) -> bool:
        return (self._read() or {}).get("token") == self._token

    def _refusal(self, held: dict[str, Any]) -> RunError:
        return RunError(
            f"{self._shown}: another {self._doing}: {_described(held)}",
            hint="wait for it, or give another address to --run; if that process has ended without "
            f"removing its lock, delete {self._file}",
        )

    def _read(self) -> dict[str, Any] | None:
        """The content of the lock; None where there is none, empty where it is damaged."""
        try:
            document = json.loads(self._file.read_now())
        except (FileNotFoundError, IsADirectoryError):
            return None
        except ValueError:
            return {}
        return document if isinstance(document, dict) and "token" in document else {}


def current_user() -> str:
    """Name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user name
        return "somebody"


def _described(held: dict[str, Any]) -> str:
    """The owner of a lock in words."""
    if "host" not in held:
        return "an unknown process"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(held.get("time", 0)))
    return f"{held.get('who')} on {held['host']}, process {held.get('process')}, since {since}"
