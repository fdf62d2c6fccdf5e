"""One process at a time changes a folder."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capro.errors import RunError
from capro.run.disk_errors import writing

LOCK = ".lock"
_locked: set[tuple[Path, int]] = set()  # folders that a thread of this process has locked


def is_locked(folder: Path) -> bool:
    """Whether a process changes a folder now."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock yet
        return False
    return False


@contextmanager
def alone_in(folder: Path, doing: str) -> Iterator[None]:
    """One process at a time changes a folder; the lock dies with its process.

    Within a block that has the lock it may be taken again.
    """
    at = folder.resolve(), threading.get_ident()
    if at in _locked:
        yield
        return
    with writing(folder / LOCK):
        opened = (folder / LOCK).open("w")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder}: another {doing}", hint="wait for it, or give another folder to --run"
            ) from None
        _locked.add(at)
        try:
            yield
        finally:
            _locked.discard(at)
