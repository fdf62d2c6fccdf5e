"""The decisions of a run in an object store: one review at a time, uploaded while it goes on and at its end.

The log on this machine is the one that is written to; what is uploaded is a whole copy of it. After a kill the
decisions of the last EVERY seconds are on this machine alone: the next review of the run uploads them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from capro.errors import CaproError
from capro.run import durable
from capro.run.artefacts import REVIEW, atomic_path
from capro.run.directory import Run
from capro.run.lock import alone_in
from capro.run.store_lock import LOCK, StoreLock
from capro.run.working_copy import LOG, WorkingCopy

EVERY = 10.0  # seconds


@contextmanager
def kept_in_store(run: Run) -> Iterator[None]:
    """A block in which decisions may be made; nothing is done for a run of this machine."""
    copy = run.copy
    if copy is None:
        yield
        return
    folder = run.path / REVIEW
    durable.make_folder(folder)
    with alone_in(folder, "capro review of this run is open"):
        lock = copy.store_lock(f"{REVIEW}/{LOCK}", "capro review of this run is open")
        lock.take()
        end = threading.Event()
        often = threading.Thread(target=_upload_often, args=(copy, lock, end), daemon=True)
        try:
            copy.refresh()
            upload_log(copy, lock)  # what a review that was killed has left
            often.start()
            yield
        finally:
            end.set()
            if often.ident is not None:
                often.join()
            try:
                upload_log(copy, lock)
            finally:
                lock.release()


def _upload_often(copy: WorkingCopy, lock: StoreLock, end: threading.Event) -> None:
    while not end.wait(EVERY):
        with suppress(CaproError, OSError, sqlite3.Error):  # the last upload says what is wrong
            upload_log(copy, lock)


def upload_log(copy: WorkingCopy, lock: StoreLock) -> None:
    """Upload the log if it is there and has changed."""
    file = copy.path / LOG
    if not file.exists() or not copy.has_changed(LOG):
        return
    lock.check()
    with closing(sqlite3.connect(file, timeout=30)) as base:
        base.execute("pragma wal_checkpoint(truncate)")
        seen = copy.here(LOG)  # what is decided from here on is uploaded the next time
        with atomic_path(file.with_name("upload.sqlite"), cache=True) as temporary:
            with closing(sqlite3.connect(temporary)) as whole:
                base.backup(whole)
            copy.push(LOG, content=temporary, seen=seen)
    file.with_name("upload.sqlite").unlink(missing_ok=True)
