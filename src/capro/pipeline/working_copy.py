"""A run in an object store: its working copy on this machine, and what moves between the two."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from capro.errors import CaproError, RunError, StoreError
from capro.pipeline import checksums
from capro.pipeline import files as durable
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
from capro.pipeline.files import writing
from capro.pipeline.locks import STORE_LOCK, StoreLock, is_locked
from capro.pipeline.ranks import is_main_process
from capro.stores import ObjectPath, place

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
        self._lock = FileLock(folder / ".refresh")
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
        with self._thread, self._lock:
            if self._depth == 0:
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


LOG = f"{REVIEW}/{DECISIONS}"
NOTHING = [0]  # the state of a log without decisions
AT_ONCE = (SETTINGS, EVENTS, LOG)  # what is fetched when a run is opened


def cache_folder() -> Path:
    """Where working copies are kept."""
    return Path(os.environ.get("CAPRO_CACHE") or Path.home() / ".cache" / "capro").absolute()


def run_folder(text: str | Path) -> Path:
    """The run directory of a path or an address: its own, or the working copy as the store has it now."""
    where = place(text)
    if isinstance(where, Path):
        return where
    folder = cache_folder() / "runs" / fingerprint(str(where)) / where.name
    copy = _copies.get(folder) or WorkingCopy.make(folder, where)
    _copies[folder] = copy
    copy.refresh()
    return folder


def copy_of(path: Path) -> WorkingCopy | None:
    """The working copy that a run directory is; None where it is one of this machine alone."""
    if path not in _copies:
        found = WorkingCopy(path) if (path.parent / FILE).is_file() else None
        if found is not None:
            found.refresh()
        _copies[path] = found
    return _copies[path]


def shown(path: Path) -> str:
    """A run directory as its user calls it: its path, or its address."""
    copy = copy_of(path)
    return str(path if copy is None else copy.address)


_copies: dict[Path, WorkingCopy | None] = {}


class WorkingCopy:
    """The working copy of a run that lives in a store.

    Attributes:
        path: The run directory on this machine.
        address: The run in the store.
        objects: What the store had when it was last looked at, by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = CopyState(path.parent)
        self.address = self._state.address
        self.objects: dict[str, ObjectPath] = {}
        self._held: StoreLock | None = None

    @staticmethod
    def make(path: Path, address: ObjectPath) -> WorkingCopy:
        """Make or reopen the working copy of an address."""
        with writing(path):
            durable.make_folder(path)
            CopyState.make(path.parent, address)
        return WorkingCopy(path)

    def store_lock(self, name: str, doing: str) -> StoreLock:
        """A lock of the run in the store, by the name of its object."""
        return StoreLock(self.address / name, self._state.copy, shown=str(self.address), doing=doing)

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
            for stage in self._waiting():
                self.upload(stage)
            yield
        finally:
            with suppress(CaproError, OSError):  # a record for people: nothing depends on it
                self.push(EVENTS)
            self._held = None
            lock.release()

    # --- from the store ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what has changed in the store since; one process of this machine at a time."""
        with self._state.changing():
            self.objects = self.address.below()
            if self._held is None and is_main_process() and is_locked(self.path):
                return  # another process of this machine works here: this copy is newer than the store
            if SETTINGS not in self.objects and SETTINGS in self._state.files:
                self._forget_all()
            durable.make_folder(self.path)
            for name in AT_ONCE:
                self._take_file(name)
            ended = {each.rpartition("/")[0] for each in self.objects if each.endswith(f"/{FINISHED}")}
            for stage in sorted(ended | self._state.stages.keys()):
                self._take_stage(stage)

    def is_foreign(self) -> bool:
        """Whether the address holds objects, and none of them is a run.yaml."""
        return SETTINGS not in self.objects and any(name != STORE_LOCK for name in self.objects)

    def bring(self, name: str) -> None:
        """Fetch a file of a finished stage, or one beside its results, unless it is here already."""
        stage, _, file = name.rpartition("/")
        done = checksums.finished_in(self.path / stage, FINISHED) or {}
        record = done.get("files", {}).get(file)
        if record is not None:
            if not checksums.same(self.path / name, record) and self.holds(name, record):
                self._fetch_checked(stage, name, record)
        elif name in self.objects and (file in BESIDE_RESULTS or (done and "files" not in done)):  # 0.1.0
            with self._state.changing():
                self._take_file(name)

    def holds(self, name: str, record: Mapping[str, Any]) -> bool:
        """Whether the store has a file of a stage as it was recorded, as far as its size shows."""
        there, stage = self.objects.get(name), name.rpartition("/")[0]
        known = self._state.stages.get(stage, {}).get("check")
        if there is None or known is None or known != _identity(self.path / stage):
            return False
        damaged = self._state.damaged.get(name) == [there.version, record["sha256"]]
        return there.size == record["size"] and not damaged

    def _fetch_checked(self, stage: str, name: str, record: Mapping[str, Any]) -> None:
        there = self.objects[name]
        with atomic_path(self.path / name, needed=int(record["size"])) as temporary:
            try:
                there.fetch(temporary)
            except (FileNotFoundError, StoreError):
                self._refuse_changed(stage)
                raise
            if checksums.sha256_of(str(temporary)) != record["sha256"]:
                self._refuse_changed(stage)
                with self._state.changing():
                    self._state.damaged[name] = [there.version, record["sha256"]]
                raise RunError(
                    f"{there}: damaged since the {stage} stage wrote it",
                    hint=f"`capro run --run {self.address}` does the {stage} stage again",
                )
            os.utime(temporary, ns=(record["mtime_ns"], record["mtime_ns"]))

    def _refuse_changed(self, stage: str) -> None:
        """Stop where another machine does a stage again while its files are fetched."""
        now = self.address / stage / FINISHED
        if not now.exists() or now.version != self._state.stages.get(stage, {}).get("version"):
            raise RunError(
                f"{self.address}: the {stage} stage is done again by another process",
                hint="wait for it, then give the same command again",
            )

    def _take_stage(self, stage: str) -> None:
        """Make the stage.json here the store's, unless the one here is newer."""
        there, known = self.objects.get(f"{stage}/{FINISHED}"), self._state.stages.get(stage)
        folder = self.path / stage
        if not is_main_process() and folder.exists():  # the main rank may be working in it
            return
        here = _identity(folder)
        newer = here is not None and here != (known or {}).get("check")
        if there is None:
            if known is not None and not newer:  # gone from the store
                shutil.rmtree(folder, ignore_errors=True)
            if not newer:
                self._state.stages.pop(stage, None)
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
        self._note_stage(stage, _identity(folder))

    def _take_file(self, name: str) -> None:
        """Make a file that belongs to no result the store's, unless only the one here has changed."""
        there, known, file = self.objects.get(name), self._state.files.get(name), self.path / name
        if not is_main_process() and file.exists():
            return
        if there is None or (known is not None and known["version"] == there.version and file.exists()):
            return
        if name == EVENTS and file.exists() and file.read_bytes().startswith(there.read_bytes()):
            return
        if name == LOG and file.exists() and _here(file) != (known or {"here": NOTHING})["here"]:
            raise RunError(
                f"{file}: has decisions that {there} lacks, and the other way round",
                hint=f"move {file} to another folder; the next command then downloads the decisions of the store",
            )
        for left in file.parent.glob(f"{file.name}-*"):  # what SQLite keeps beside a file that is replaced
            left.unlink()
        with atomic_path(file) as temporary:
            there.fetch(temporary)
        self._state.files[name] = {"version": there.version, "here": _here(file)}

    def _forget_all(self) -> None:
        """The run was deleted in the store: nothing of it is kept here."""
        if is_main_process() and not (self.address / SETTINGS).exists():
            shutil.rmtree(self.path, ignore_errors=True)
            self._state.forget()

    # --- to the store -----------------------------------------------------------------------------

    def here(self, name: str) -> list[int]:
        """The state of a file of this machine."""
        return _here(self.path / name)

    def has_changed(self, name: str) -> bool:
        """Whether a file is another one than the store has."""
        known = self._state.files.get(name)
        return name not in self.objects or known is None or known["here"] != self.here(name)

    def push(self, name: str, *, content: Path | None = None, seen: list[int] | None = None) -> None:
        """Upload a file that belongs to no result, if it is here and has changed.

        Args:
            name: Of the file.
            content: A copy of it, where it may change meanwhile.
            seen: Its state when that copy was made.
        """
        with self._state.changing():
            if not (self.path / name).exists() or not self.has_changed(name):
                return
            seen = self.here(name) if seen is None else seen
            self.objects[name] = (self.address / name).upload(content or self.path / name)
            self._state.files[name] = {"version": self.objects[name].version, "here": seen}

    def upload(self, stage: str) -> None:
        """Upload a finished stage: its stage.json goes first and comes last."""
        done = checksums.finished_in(self.path / stage, FINISHED) or {}
        mark, files = f"{stage}/{FINISHED}", [f"{stage}/{name}" for name in done.get("files", {})]
        lock = self._held
        if lock is None:
            raise RunError(f"{self.address}: not locked", hint="this is a bug in capro: please report it")
        lock.check()
        if mark in self.objects:
            self.objects.pop(mark).remove()
        old = [each for each in self.objects if each.rpartition("/")[0] == stage and each not in files]
        for name in old:  # of the result that this one replaces
            self.objects.pop(name).remove()
        for name in files:
            self.objects[name] = (self.address / name).upload(self.path / name)
        self.push(EVENTS)
        lock.check()  # a long upload: nobody else has begun meanwhile
        self.objects[mark] = (self.address / mark).upload(self.path / mark)
        with self._state.changing():
            for name in old:
                self._state.files.pop(name, None)
            self._note_stage(stage, _identity(self.path / stage))

    def keep(self, stage: str, name: str) -> None:
        """Copy a stage within the store under the name that the one here is about to get."""
        for each in sorted(self.objects, key=lambda each: each.endswith(f"/{FINISHED}")):
            if each.rpartition("/")[0] == stage:
                target = self.address / name / each.rpartition("/")[2]
                self.objects[each].copy(target)
                self.objects[f"{name}/{target.name}"] = target
        if f"{name}/{FINISHED}" in self.objects:
            with self._state.changing():
                self._note_stage(name, self._state.stages.get(stage, {}).get("check"))

    def _note_stage(self, stage: str, check: str | None) -> None:
        version = self.objects[f"{stage}/{FINISHED}"].version
        self._state.stages[stage] = {"version": version, "check": check}

    def _waiting(self) -> list[str]:
        """Finished stages of this machine that the store lacks."""
        found = []
        for mark in sorted(self.path.rglob(FINISHED)):
            stage = mark.parent.relative_to(self.path).as_posix()
            here = _identity(mark.parent)
            known = self._state.stages.get(stage, {})
            if not stage.startswith(".") and here is not None and here != known.get("check"):
                files = (checksums.finished_in(mark.parent, FINISHED) or {}).get("files", {})
                if all(checksums.same(mark.parent / name, record) for name, record in files.items()):
                    found.append(stage)
        return found


def _identity(folder: Path) -> str | None:
    """The hash of a stage.json here; None where there is none, or it is damaged."""
    found = checksums.finished_in(folder, FINISHED)
    return None if found is None else checksums.sha256_of(str(folder / FINISHED))


def _here(file: Path) -> list[int]:
    """The state of a file of this machine; a log of decisions, which only grows, is known by its length."""
    if file.name != DECISIONS:
        stat = file.stat()
        return [stat.st_size, stat.st_mtime_ns]
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as base:
            return [int(base.execute("select count(*) from actions").fetchone()[0])]
    except sqlite3.Error:  # nothing has been written into it
        return NOTHING
