"""A disk that forgets: what is left of a folder after a power cut, at every step of a program."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

Names = dict[int, dict[str, int]]  # inode of a folder -> its names and their inodes
Survives = Literal["synced", "names", "some names"]  # beside content that was synced, which always does


@dataclass(frozen=True)
class Moment:
    """What is on the disk, and what only the running system sees."""

    content: dict[int, bytes]
    synced: Names
    live: Names


class ForgetfulDisk:
    """Notes at each sync what has become durable below a folder; nothing else is intercepted.

    A file's content is durable as of its last sync, and a folder's list of names as of the folder's. Between two
    syncs nothing becomes durable, so a moment after each is every state that a power cut can leave.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.moments = root, list[Moment]()
        self._content, self._synced, self._held = dict[int, bytes](), Names(), list[int]()
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "sync", self._sync_all)
        self._sync_all()

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def _fsync(self, descriptor: int) -> None:
        self._take(descriptor)
        self.moments.append(Moment(dict(self._content), dict(self._synced), self._names()))

    def _sync_all(self) -> None:
        for folder, _, files in os.walk(self.root):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                descriptor = os.open(path, os.O_RDONLY)
                self._take(descriptor)
                os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        self._held.append(os.dup(descriptor))  # as long as it is open no other file gets its inode
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._synced[found.st_ino] = _listing(descriptor)
        else:
            self._content[found.st_ino] = os.pread(descriptor, found.st_size, 0)

    def _names(self) -> Names:
        return {os.stat(folder).st_ino: _listing(folder) for folder, _, _ in os.walk(self.root)}

    def after_cuts(self, target: Path, survives: Survives, seed: int = 0) -> Iterator[Path]:
        """What a power cut leaves at each moment, as a folder; moments that leave the same are one."""
        seen = set()
        for number, moment in enumerate(self.moments):
            chance = random.Random(f"{seed} {number}")

            def names(inode: int, moment: Moment = moment, chance: random.Random = chance) -> dict[str, int]:
                live = survives == "names" or (survives == "some names" and chance.random() < 0.5)
                return (moment.live if live else moment.synced).get(inode, {})

            left = target / f"{survives} {number}"
            state = self._rebuild(moment, names, os.stat(self.root).st_ino, left)
            if state not in seen:
                seen.add(state)
                yield left

    def _rebuild(self, moment: Moment, names, inode: int, target: Path) -> tuple[object, ...]:  # type: ignore[no-untyped-def]
        target.mkdir(parents=True)
        found: list[object] = []
        for name, each in sorted(names(inode).items()):
            if each in moment.live or each in moment.synced:
                found.append((name, self._rebuild(moment, names, each, target / name)))
            else:
                content = moment.content.get(each, b"")
                (target / name).write_bytes(content)
                found.append((name, content))
        return tuple(found)


def _listing(folder: int | str) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}
