"""The run directory: atomic artefacts, fingerprints, skip-if-fresh, seeds, events.

A run directory holds ``run.yaml`` (resolved settings, versions, data fingerprint), one folder per
stage, and ``events.jsonl``. An artefact is written under a temporary name and renamed, so that it is
whole or absent. A stage folder's ``stage.json`` is written last and holds the stage's fingerprint:
a hash over its settings and the fingerprints of the stages it reads. Equal fingerprint: skipped.
A stage that knows a hash of what it wrote (``content``) is known by that to the stages behind it:
a data set copied elsewhere is scanned again, and nothing else is done again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from numpy.typing import NDArray

from capro import __version__, launched
from capro.config import Settings, validate
from capro.errors import RunError

COMMANDS = {  # of stages that have none of their own name
    "classes": "classes show",
    "pixels": "pretrain",
    "features": "pretrain",
    "graph": "match",
}
VERSIONED = ("torch", "transformers", "accelerate", "faiss-cpu", "kornia", "numpy", "Pillow")


# --- atomic writes --------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends without an exception.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_path(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text(), [p.name for p in target.parent.iterdir()]
    ('whole', ['a.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # the suffix stays last: some writers (np.save) append one otherwise
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text("utf-8"))


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an ``.npy`` file, whole or not at all."""
    with atomic_path(path) as temporary:
        np.save(temporary, array, allow_pickle=False)


def read_array(path: Path) -> NDArray[Any]:
    """Open an ``.npy`` file as a read-only memory map."""
    if not path.exists():
        raise RunError(f"{path}: no such file", hint="run the stage that makes it again")
    return cast(NDArray[Any], np.load(path, mmap_mode="r", allow_pickle=False))


# --- fingerprints and seeds -----------------------------------------------------------------------


def fingerprint(value: Any) -> str:
    """A hash of a JSON-like value; equal values give equal hashes in any key order.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def seed_for(seed: int, *names: str | int) -> int:
    """An independent 63-bit seed for a named purpose.

    >>> seed_for(0, "match") == seed_for(0, "match"), seed_for(0, "match") == seed_for(1, "match")
    (True, False)
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


# --- run directory --------------------------------------------------------------------------------


@contextmanager
def alone_in(folder: Path, doing: str) -> Iterator[None]:
    """One process at a time changes a folder; the lock dies with its process."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder}: another {doing}", hint="wait for it, or give another folder to --run"
            ) from None
        yield


def _identity(done: Mapping[str, Any]) -> str:
    """What a finished stage is known by to those that read it."""
    return str((done.get("result") or {}).get("content", done["fingerprint"]))


@dataclass(frozen=True)
class Run:
    """A run directory and the settings it was made with."""

    path: Path
    settings: Settings

    @staticmethod
    def create(path: Path, settings: Settings) -> Run:
        """Make or reopen a run directory with these settings; artefacts of other settings go stale."""
        if not launched.is_main():  # the main rank checks and writes; the others meet it in a stage
            return Run(path, settings)
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is a file", hint="give a folder to --run")
        marker = path / "run.yaml"
        if path.is_dir() and any(path.iterdir()) and not marker.exists():
            raise RunError(
                f"{path}: not empty and not a run directory", hint="give a new folder to --run"
            )
        run = Run(path, settings)
        run._write()
        return run

    @staticmethod
    def open(path: Path) -> Run:
        """Open a run directory that a stage has made."""
        file = path / "run.yaml"
        if not file.exists():
            raise RunError(
                f"{path}: no run.yaml, so not a run directory",
                hint="make one with `capro scan SOURCE --run DIR` or `capro run`",
            )
        try:
            values = yaml.safe_load(file.read_text("utf-8"))["settings"]
        except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
            raise RunError(
                f"{file}: damaged", hint="delete it and run `capro scan` again"
            ) from None
        return Run(path, validate(values, place=str(file)))

    def with_settings(self, settings: Settings) -> Run:
        """The same directory under changed settings, which are written to run.yaml."""
        if settings == self.settings:
            return self
        run = Run(self.path, settings)
        run._write()
        return run

    def _write(self) -> None:
        if not launched.is_main():
            return
        scan = self.finished("scan")
        document = {
            "capro": __version__,
            "python": platform.python_version(),
            "versions": {name: metadata.version(name) for name in VERSIONED},
            "seed": self.settings.seed,
            "data": _identity(scan) if scan else None,
            "settings": self.settings.model_dump(),
        }
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        file = self.path / "run.yaml"
        if not file.exists() or file.read_text("utf-8") != text:
            write_text(file, text)

    def event(self, name: str, **values: Any) -> None:
        """Append a line to events.jsonl; one write call, so lines never interleave."""
        if not launched.is_main():
            return
        line = json.dumps(
            {"time": round(time.time(), 3), "event": name, **values}, ensure_ascii=False
        )
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def folder(self, stage: str) -> Path:
        """The folder of a stage."""
        return self.path / stage

    def finished(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage left in its stage.json; None if it has not finished."""
        file = self.path / stage / "stage.json"
        return cast(dict[str, Any], read_json(file)) if file.exists() else None

    def stamp(self, stage: str) -> int | None:
        """When a stage finished, in nanoseconds: another number after it was done again."""
        file = self.path / stage / "stage.json"
        return file.stat().st_mtime_ns if file.exists() else None

    def need(self, stage: str) -> str:
        """What a stage that must have finished is known by: its content's hash or fingerprint."""
        done = self.finished(stage)
        if done is None:
            raise RunError(
                f"{self.path}: the {stage} stage has not finished",
                hint=f"run `capro {COMMANDS.get(stage, stage)} --run {self.path}` first, "
                "or `capro run` for all",
            )
        return _identity(done)

    def issues(self) -> Any:
        """The verdicts as a DataFrame, one row per training sample (docs/export.md)."""
        import pandas as pd

        self.need("clean")
        listed = self.folder("clean") / "samples.parquet"  # multi-label
        return pd.read_parquet(
            listed if listed.exists() else self.folder("clean") / "verdicts.parquet"
        )

    def stage(
        self,
        name: str,
        work: Callable[[Path], Mapping[str, Any] | None],
        *,
        settings: Mapping[str, Any],
        inputs: Sequence[str] = (),
        force: bool = False,
    ) -> bool:
        """Do a stage's work unless it is fresh; True if it was done, False if it was skipped.

        Args:
            name: Stage and folder.
            work: Writes artefacts into the folder; what it returns is kept in stage.json. Under
                ``content`` it may return a hash of what it wrote.
            settings: Everything that decides the result, beside the inputs.
            inputs: Stages it reads.
            force: Do it even if it is fresh.
        """
        key = self._key(name, settings, inputs)
        if self.is_fresh(name, settings=settings, inputs=inputs) and not force:
            self.event("skipped", stage=name)
            return False
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(self.path, "capro is working in this run"):
            (folder / "stage.json").unlink(missing_ok=True)
            for left in folder.glob(".*.tmp*"):  # of a process that was killed while writing
                left.unlink()
            self.event("started", stage=name, fingerprint=key)
            begin = time.monotonic()
            try:
                result = dict(work(folder) or {})
            except BaseException as error:
                self.event("stopped", stage=name, error=type(error).__name__)
                raise
            seconds = round(time.monotonic() - begin, 2)
            write_json(
                folder / "stage.json",
                {"stage": name, "fingerprint": key, "seconds": seconds, "result": result},
            )
            self.event("finished", stage=name, fingerprint=key, seconds=seconds)
        if name == "scan":
            self._write()  # run.yaml names the data fingerprint
        return True

    def is_fresh(
        self, name: str, *, settings: Mapping[str, Any], inputs: Sequence[str] = ()
    ) -> bool:
        """Whether a stage has finished with these settings and the inputs as they are now."""
        done = self.finished(name)
        return done is not None and done["fingerprint"] == self._key(name, settings, inputs)

    def _key(self, name: str, settings: Mapping[str, Any], inputs: Sequence[str]) -> str:
        return fingerprint([name, settings, [self.need(stage) for stage in inputs]])
