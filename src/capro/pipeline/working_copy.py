"""A run in an object store and its working copy on this machine: stages are pulled and pushed whole.

The store is authoritative. A stage in the store is complete or absent: its stage.json is removed first and
uploaded last. One machine at a time changes a run (`capro.pipeline.locks.StoreLock`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from capro.errors import CaproError, RunError, StoreError
from capro.pipeline import checksums
from capro.pipeline.artefacts import (
    BESIDE_RESULTS,
    DECISIONS,
    EVENTS,
    FINISHED,
    REVIEW,
    SETTINGS,
    atomic_path,
    read_json,
    write_json,
)
from capro.pipeline.checksums import fingerprint
from capro.pipeline.files import make_folder, writing
from capro.pipeline.locks import STORE_LOCK, StoreLock, is_locked
from capro.pipeline.ranks import is_main_process
from capro.stores import ObjectPath, any_path

STATE = ".capro-store.json"
LOG = f"{REVIEW}/{DECISIONS}"
_copies: dict[Path, WorkingCopy | None] = {}


def cache_folder() -> Path:
    """Where working copies are kept."""
    return Path(os.environ.get("CAPRO_CACHE") or Path.home() / ".cache" / "capro").absolute()


def run_folder(text: str | Path) -> Path:
    """The run directory of a path or an address: its own, or the working copy as the store has it now."""
    address = any_path(text)
    if isinstance(address, Path):
        return address
    folder = cache_folder() / "runs" / fingerprint(str(address)) / address.name
    copy = _copies.get(folder) or WorkingCopy(folder, address)
    _copies[folder] = copy
    copy.refresh()
    return folder


def copy_of(path: Path) -> WorkingCopy | None:
    """The working copy that a run directory is; None where it is one of this machine alone."""
    if path not in _copies:
        copy = WorkingCopy(path) if (path.parent / STATE).is_file() else None
        if copy is not None:
            copy.refresh()
        _copies[path] = copy
    return _copies[path]


def shown(path: Path) -> str:
    """A run directory as its user calls it: its path, or its address."""
    copy = copy_of(path)
    return str(path if copy is None else copy.address)


class WorkingCopy:
    """The working copy of a run that lives in a store.

    Its state is a file beside it: by the name of each stage.json and of each file that belongs to no result, the
    version in the store and the content here when both were last the same.

    Attributes:
        path: The run directory on this machine.
        address: The run in the store.
        objects: What the store had when it was last listed, by name.
    """

    address: ObjectPath

    def __init__(self, path: Path, address: ObjectPath | None = None) -> None:
        """Open a working copy; with an address it is made where there is none."""
        self.path = path
        self.objects: dict[str, ObjectPath] = {}
        self._state_lock = FileLock(path.parent / ".refresh")
        self._held: StoreLock | None = None
        self._remote: set[str] = set()  # stages with files that are only in the store
        if address is not None and not (path.parent / STATE).exists():
            with writing(path):
                make_folder(path)
            self._save(address, secrets.token_hex(8), {})
        self._load()

    def store_lock(self, name: str, doing: str) -> StoreLock:
        """A lock of the run in the store, by the name of its object."""
        return StoreLock(self.address / name, self._id, shown=str(self.address), doing=doing)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other machine changes the run meanwhile; whoever calls has locked the working copy."""
        if self._held is not None:
            yield
            return
        lock = self.store_lock(STORE_LOCK, "capro is working in this run")
        lock.take()
        self._held = lock
        try:
            self.refresh()
            self.push_finished()  # of a process that was killed, or had no network
            yield
        finally:
            with suppress(CaproError, OSError):  # a record for people: nothing depends on it
                self.push_file(EVENTS)
            self._held = None
            lock.release()

    def _load(self) -> None:
        try:
            state = read_json(self.path.parent / STATE)
            address, self._id = any_path(state["address"]), str(state["id"])
            self._synced: dict[str, Any] = dict(state["synced"])
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            address = self.path
        if not isinstance(address, ObjectPath):
            raise RunError(
                f"{self.path.parent / STATE}: damaged",
                hint=f"delete {self.path.parent}: it is the working copy of a run in an object store, "
                "and is made again when needed",
            )
        self.address = address

    def _save(self, address: ObjectPath, identity: str, synced: Mapping[str, Any]) -> None:
        write_json(self.path.parent / STATE, {"address": str(address), "id": identity, "synced": synced})

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A block that changes the state; other processes and threads wait until it ends."""
        with self._state_lock:
            self._load()
            try:
                yield
            finally:
                self._save(self.address, self._id, self._synced)

    # --- from the store ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what other machines have changed: settings, decisions, and which stages have finished."""
        with self._changing():
            self.objects = self.address.below()
            if self._held is not None or not self._is_busy():
                self._take_all()
            self._remote = {stage for stage in self._stages() if self._is_remote(stage)}

    def _is_busy(self) -> bool:
        """Whether another process of this machine works here, so that this copy is newer than the store."""
        if is_main_process():
            return is_locked(self.path)
        return (self.path / SETTINGS).exists()  # of several ranks the main one works, or is about to

    def is_foreign(self) -> bool:
        """Whether the address holds objects, and none of them is a run.yaml."""
        return SETTINGS not in self.objects and any(name != STORE_LOCK for name in self.objects)

    def is_remote(self, stage: str) -> bool:
        """Whether files of a finished stage are only in the store; `pull` fetches them."""
        return stage in self._remote

    def pull(self, stage: str) -> None:
        """Fetch the files of a finished stage that are only in the store."""
        if stage not in self._remote:
            return
        with self._changing():
            for name, record in self._files(stage).items():
                if not checksums.same(self.path / name, record):
                    self._fetch(stage, name, record)
            self._remote.discard(stage)

    def _stages(self) -> set[str]:
        """Stages of the store, and those that both had in common."""
        names = [*self.objects, *self._synced]
        return {name.rpartition("/")[0] for name in names if name.endswith(f"/{FINISHED}")}

    def _files(self, stage: str) -> dict[str, Any]:
        """The records of the files of a stage that has finished here, by their names in the run."""
        done = checksums.read_sealed(self.path / stage / FINISHED) or {}
        return {f"{stage}/{name}": record for name, record in done.get("files", {}).items()}

    def _is_remote(self, stage: str) -> bool:
        mark = f"{stage}/{FINISHED}"
        known, there = self._synced.get(mark), self.objects.get(mark)
        if known is None or there is None or known["version"] != there.version or known.get("damaged"):
            return False
        if known["here"] != _content(self.path / mark):
            return False
        missing = {
            name: record["size"]
            for name, record in self._files(stage).items()
            if not checksums.same(self.path / name, record)
        }
        there_too = {name: self.objects[name].size for name in missing if name in self.objects}
        return bool(missing) and there_too == missing

    def _fetch(self, stage: str, name: str, record: Mapping[str, Any]) -> None:
        there = self.objects[name]
        with atomic_path(self.path / name, needed=int(record["size"])) as temporary:
            try:
                there.fetch(temporary)
            except (FileNotFoundError, StoreError):
                self._refuse_replaced(stage)
                raise
            if checksums.sha256_of(str(temporary)) != record["sha256"]:
                self._refuse_replaced(stage)
                self._synced[f"{stage}/{FINISHED}"]["damaged"] = True
                self._remote.discard(stage)
                raise RunError(
                    f"{there}: damaged since the {stage} stage wrote it",
                    hint=f"`capro run --run {self.address}` does the {stage} stage again",
                )
            os.utime(temporary, ns=(record["mtime_ns"], record["mtime_ns"]))

    def _refuse_replaced(self, stage: str) -> None:
        """Stop where another machine does a stage again while its files are fetched."""
        mark = self.address / stage / FINISHED
        if not mark.exists() or mark.version != self._synced[f"{stage}/{FINISHED}"]["version"]:
            raise RunError(
                f"{self.address}: the {stage} stage is done again by another process",
                hint="wait for it, then give the same command again",
            )

    def _take_all(self) -> None:
        gone = SETTINGS not in self.objects and SETTINGS in self._synced
        if gone and not (self.address / SETTINGS).exists():  # the run was deleted in the store
            shutil.rmtree(self.path, ignore_errors=True)
            self._synced = {}
        make_folder(self.path)
        for stage in sorted(self._stages()):
            self._take_stage(stage)
        beside = [name for name in self.objects if name.rpartition("/")[2] in BESIDE_RESULTS]
        for name in (SETTINGS, EVENTS, LOG, *beside):
            self._take_file(name)

    def _take_stage(self, stage: str) -> None:
        """Make the stage.json here the store's, unless the one here is newer."""
        mark, folder = f"{stage}/{FINISHED}", self.path / stage
        there, known, here = self.objects.get(mark), self._synced.get(mark), _content(folder / FINISHED)
        if there is None:
            if known is not None and here in (None, known["here"]):  # deleted in the store
                shutil.rmtree(folder, ignore_errors=True)
            self._synced.pop(mark, None)
            return
        if known is not None and known["version"] == there.version and here is not None:
            return
        data = there.read_bytes()
        if hashlib.sha256(data).hexdigest() != here:
            shutil.rmtree(folder, ignore_errors=True)
            with atomic_path(folder / FINISHED) as temporary:
                temporary.write_bytes(data)
            when = there.modified  # stages keep the order of their times
            os.utime(folder / FINISHED, (when, when))
        self._record(mark, _content(folder / FINISHED))

    def _take_file(self, name: str) -> None:
        """Make a file that belongs to no result the store's, unless only the one here has changed."""
        there, known, file = self.objects.get(name), self._synced.get(name), self.path / name
        if there is None or (known is not None and known["version"] == there.version and file.exists()):
            return
        if name == EVENTS and file.exists() and file.read_bytes().startswith(there.read_bytes()):
            return
        if name == LOG and file.exists() and _content(file) != (known or {"here": 0})["here"]:
            raise RunError(
                f"{file}: has decisions that {there} lacks, and the other way round",
                hint=f"move {file} to another folder; the next command then downloads the decisions of the store",
            )
        for left in file.parent.glob(f"{file.name}-*"):  # what SQLite keeps beside a file that is replaced
            left.unlink()
        with atomic_path(file) as temporary:
            there.fetch(temporary)
        self._record(name, _content(file))

    # --- to the store -----------------------------------------------------------------------------

    def has_changed(self, name: str) -> bool:
        """Whether the content of a file here is not what the store has."""
        known = self._synced.get(name)
        return name not in self.objects or known is None or known["here"] != _content(self.path / name)

    def push_file(self, name: str, *, snapshot: Path | None = None) -> None:
        """Upload a file that belongs to no result, or a snapshot of it, if it is here and has changed."""
        if not (self.path / name).exists() or not self.has_changed(name):
            return
        with self._changing():
            self._upload(name, snapshot or self.path / name)

    def _upload(self, name: str, source: Path) -> None:
        here = _content(source)  # before the upload: a file that grows meanwhile is uploaded again
        self.objects[name] = (self.address / name).upload(source)
        self._record(name, here)

    def _record(self, name: str, here: str | int | None) -> None:
        """Remember that a file with this content is the store's."""
        self._synced[name] = {"version": self.objects[name].version, "here": here}

    def push_finished(self) -> None:
        """Upload each stage that has finished here and that the store lacks."""
        for mark in sorted(self.path.rglob(FINISHED)):
            stage = mark.parent.relative_to(self.path).as_posix()
            known = self._synced.get(f"{stage}/{FINISHED}", {}).get("here")
            if stage.startswith(".") or _content(mark) in (None, known):
                continue
            if all(checksums.same(self.path / name, record) for name, record in self._files(stage).items()):
                self._push(stage)

    def _push(self, stage: str) -> None:
        mark, files = f"{stage}/{FINISHED}", self._files(stage)
        lock = self._held
        if lock is None:
            raise RunError(f"{self.address}: not locked", hint="this is a bug in capro: please report it")
        lock.check()
        if mark in self.objects:
            self.objects.pop(mark).remove()
        for name in [*self.objects]:
            if name.rpartition("/")[0] == stage and name not in files:  # of the result that this one replaces
                self.objects.pop(name).remove()
        for name in files:
            self.objects[name] = (self.address / name).upload(self.path / name)
        self.push_file(EVENTS)
        lock.check()  # a long upload: nobody else has begun meanwhile
        with self._changing():
            self._upload(mark, self.path / mark)


def _content(file: Path) -> str | int | None:
    """Identifies a file's content: a log of decisions, which only grows, by its length; None: a damaged stage.json."""
    if file.suffix == Path(DECISIONS).suffix:
        return _log_length(file)
    if file.name == FINISHED and checksums.read_sealed(file) is None:
        return None
    return checksums.sha256_of(str(file))


def _log_length(file: Path) -> int:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as base:
            return int(base.execute("select count(*) from actions").fetchone()[0])
    except sqlite3.Error:  # nothing has been written into it
        return 0
