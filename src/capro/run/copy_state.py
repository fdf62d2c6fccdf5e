"""What a working copy has in common with its store: a file that several processes of this machine may change."""

from __future__ import annotations

import fcntl
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capro.errors import RunError
from capro.places import ObjectPath, place
from capro.run.artefacts import read_json, write_json

FILE = ".capro-store.json"
PARTS = ("stages", "files", "damaged")


class CopyState:
    """The state of one working copy; safe to use from threads.

    Attributes:
        address: Of the run in the store.
        copy: Identifies the working copy.
        stages: By name, the version of the stage.json that both have, and the hash of it here.
        files: By name, the version of a file that both have, and its state here.
        damaged: By name, the version and the wanted hash of a file in the store that is not what it should be.
    """

    address: ObjectPath
    copy: str
    stages: dict[str, Any]
    files: dict[str, Any]
    damaged: dict[str, Any]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.RLock()
        self._depth = 0
        self._load()

    @staticmethod
    def make(folder: Path, address: ObjectPath) -> None:
        """Write the state of a working copy that has nothing yet, unless there is one."""
        if not (folder / FILE).exists():
            empty: dict[str, Any] = {part: {} for part in PARTS}
            write_json(folder / FILE, {"address": str(address), "id": secrets.token_hex(8), **empty})

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A block that changes the state; other processes wait until it ends, and what they have changed is known."""
        with self._thread, (self._folder / ".refresh").open("w") as file:
            if self._depth == 0:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._load()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    parts = {part: getattr(self, part) for part in PARTS}
                    write_json(self._folder / FILE, {"address": str(self.address), "id": self.copy, **parts})

    def forget(self) -> None:
        """Nothing is in common any more."""
        for part in PARTS:
            setattr(self, part, {})

    def _load(self) -> None:
        try:
            found = read_json(self._folder / FILE)
            address, self.copy = place(found["address"]), str(found["id"])
            for part in PARTS:
                setattr(self, part, dict(found[part]))
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            address = self._folder
        if not isinstance(address, ObjectPath):
            raise RunError(
                f"{self._folder / FILE}: damaged",
                hint=f"delete {self._folder}: it is the working copy of a run in an object store, "
                "and is made again when needed",
            )
        self.address = address
