"""The run directory: settings, finished stages and their artefacts, events, one process at a time.

A run directory holds ``run.yaml`` (resolved settings, versions, data fingerprint), one folder per
stage, and ``events.jsonl``. A stage folder's ``stage.json`` is written last and holds the stage's
fingerprint, a hash over its settings and over the stages it reads, and the settings it was made with. A
stage that returns a hash of what it wrote (``content``) is known by that to the stages behind it: a data
set that was copied elsewhere is scanned again, and nothing else is done again.

A finished stage that is done again is worked on in ``.redo/STAGE``: what is there stays until the new
result is whole. ``run.yaml`` changes only under the lock (`capro.run.plan` says when).
"""

from __future__ import annotations

import fcntl
import itertools
import json
import platform
import shlex
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import yaml

from capro import __version__
from capro.config import Settings, validate
from capro.errors import RunError
from capro.plain_yaml import parse_yaml
from capro.regular_files import read_regular
from capro.run import artefacts, processes
from capro.run.artefacts import Artefact, read_json, write_json, write_text
from capro.run.fingerprints import fingerprint

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
LAYOUT = 1  # of the directory; version 0.1.0 wrote no number and the same files
VERSIONED = ("torch", "transformers", "accelerate", "faiss-cpu", "kornia", "numpy", "Pillow")
SETTINGS, FINISHED, EVENTS, LOCK = "run.yaml", "stage.json", "events.jsonl", ".lock"
REDO = ".redo"  # where a finished stage is done again
_locked: set[tuple[Path, int]] = set()  # folders that a thread of this process has locked


@contextmanager
def alone_in(folder: Path, doing: str) -> Iterator[None]:
    """One process at a time changes a folder; the lock dies with its process.

    Within a block that has the lock it may be taken again.
    """
    at = folder.resolve(), threading.get_ident()
    if at in _locked:
        yield
        return
    with (folder / LOCK).open("w") as file:
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


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return (path / SETTINGS).exists()


def _document(path: Path) -> dict[str, Any]:
    """What run.yaml holds, of this version's layout or an older one; empty if it is absent or damaged."""
    try:
        document = parse_yaml(read_regular(path / SETTINGS).decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    if not isinstance(document, dict):
        return {}
    layout = document.get("layout", LAYOUT)
    if not isinstance(layout, int) or layout > LAYOUT:
        raise RunError(
            f"{path}: made by capro {document.get('capro')}, whose runs this version cannot read",
            hint="install that version, or give a new folder to --run",
        )
    return document


def settings_in(path: Path) -> Settings | None:
    """The settings in a folder's run.yaml; None if it is absent or damaged."""
    values = _document(path).get("settings")
    return None if values is None else validate(values, place=str(path / SETTINGS))


@dataclass(frozen=True)
class Run:
    """A run directory and the settings it was made with."""

    path: Path
    settings: Settings

    @staticmethod
    def create(path: Path, settings: Settings) -> Run:
        """Make a run directory, or reopen one under these settings, which are kept as stages succeed."""
        if not processes.is_main():  # the main rank checks and writes; the others meet it in a stage
            return Run(path, settings)
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is a file", hint="give a folder to --run")
        if path.is_dir() and any(file.name != LOCK for file in path.iterdir()) and not is_run(path):
            raise RunError(f"{path}: not empty and not a run directory", hint="give a new folder to --run")
        _document(path)
        run = Run(path, settings)
        if not is_run(path):
            path.mkdir(parents=True, exist_ok=True)
            with run.alone():
                run.write_settings()
        return run

    @staticmethod
    def open(path: Path) -> Run:
        """Open a run directory that a stage has made."""
        file = path / SETTINGS
        if not file.exists():
            raise RunError(
                f"{path}: no {SETTINGS}, so not a run directory",
                hint=f"make one with `capro run --data SOURCE --run {shlex.quote(str(path))}`",
            )
        settings = settings_in(path)
        if settings is None:
            raise RunError(f"{file}: damaged", hint=f"`capro scan SOURCE --run {path}` writes it again")
        return Run(path, settings)

    def with_settings(self, settings: Settings) -> Self:
        """The same directory under other settings; nothing is written."""
        return replace(self, settings=settings)

    def stored(self) -> Settings:
        """The settings in run.yaml; this run's own where there are none."""
        return settings_in(self.path) or self.settings

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process changes the directory meanwhile; of several ranks the main one has the lock."""
        if not processes.is_main():
            yield
            return
        with alone_in(self.path, "capro is working in this run"):
            yield

    def write_settings(self) -> None:
        """Write run.yaml, where it changes; needs the lock."""
        if not processes.is_main():
            return
        document = {
            "capro": __version__,
            "layout": LAYOUT,
            "python": platform.python_version(),
            "versions": {name: metadata.version(name) for name in VERSIONED},
            "seed": self.settings.seed,
            "data": self.need("scan") if self.finished("scan") else None,
            "settings": self.settings.model_dump(),
        }
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        file = self.path / SETTINGS
        if not file.exists() or file.read_text("utf-8") != text:
            write_text(file, text)

    def event(self, name: str, **values: Any) -> None:
        """Append a line to events.jsonl; one write call, so lines never interleave."""
        if not processes.is_main():
            return
        row = {"time": round(time.time(), 3), "event": name, **values}
        with (self.path / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    # --- artefacts --------------------------------------------------------------------------------

    def folder(self, stage: str) -> Path:
        """The folder of a stage."""
        return self.path / stage

    def file(self, artefact: Artefact[Any]) -> Path:
        """Where an artefact is, or will be."""
        return self.path / artefact.stage / artefact.file

    def read(self, artefact: Artefact[T]) -> T:
        """An artefact of a stage that must have finished."""
        self.need(artefact.stage)
        file = self.file(artefact)
        if not file.exists():
            raise RunError(f"{file}: no such file", hint=artefacts.AGAIN)
        return artefact.load(file)

    def find(self, artefact: Artefact[T]) -> T | None:
        """An artefact, or None where its stage has not finished or did not write it."""
        known = self.finished(artefact.stage) is not None and self.file(artefact).exists()
        return artefact.load(self.file(artefact)) if known else None

    def issues(self) -> pd.DataFrame:
        """The verdicts, one row per training sample (docs/export.md)."""
        found = self.find(artefacts.SAMPLE_VERDICTS)
        return self.read(artefacts.VERDICTS) if found is None else found

    # --- stages -----------------------------------------------------------------------------------

    def finished(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage left in its stage.json; None if it has not finished."""
        file = self.path / stage / FINISHED
        return cast(dict[str, Any], read_json(file)) if file.exists() else None

    def result(self, stage: str) -> dict[str, Any]:
        """The figures that a finished stage returned."""
        self.need(stage)
        return dict((self.finished(stage) or {})["result"])

    def stamp(self, stage: str) -> int | None:
        """When a stage finished, in nanoseconds: another number after it was done again."""
        file = self.path / stage / FINISHED
        return file.stat().st_mtime_ns if file.exists() else None

    def need(self, stage: str) -> str:
        """What a stage that must have finished is known by: its content's hash, or its fingerprint."""
        done = self.finished(stage)
        if done is None:
            raise RunError(
                f"{self.path}: the {stage} stage has not finished",
                hint=f"`capro run --run {shlex.quote(str(self.path))}` does what is missing",
            )
        return str((done.get("result") or {}).get("content", done["fingerprint"]))

    def key(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str]) -> str:
        """The fingerprint of a stage under these settings, with its inputs as they are now."""
        return fingerprint([stage, settings, [self.need(name) for name in inputs]])

    def claim(self, stage: str, key: str) -> None:
        """Make the folder in which a stage with this fingerprint is, or will be."""
        del key  # for runs that share stages: bench.store
        folder, redone = self.folder(stage), self.path / REDO / stage
        if not folder.exists() and (redone / FINISHED).exists():  # killed while the new took the old's place
            redone.rename(folder)
        folder.mkdir(parents=True, exist_ok=True)

    def workplace(self, stage: str) -> Path:
        """Where a stage is worked on: its folder, or beside it while that holds a finished result."""
        return self.path / REDO / stage if self.finished(stage) else self.folder(stage)

    @contextmanager
    def working(
        self, stage: str, key: str, reads: Sequence[str] = (), *, keep: bool = False
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """A stage's work, alone in the directory: a folder, and figures that go to stage.json.

        Args:
            stage: Its name.
            key: Its fingerprint.
            reads: The stages that it reads.
            keep: Keep a finished result that this one replaces, under a number.
        """
        with self.alone():
            folder = self.workplace(stage)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FINISHED).unlink(missing_ok=True)
            for left in folder.glob(".*.tmp*"):  # of a process that was killed while writing
                left.unlink()
            self.event("started", stage=stage, fingerprint=key)
            begin, result = time.monotonic(), dict[str, Any]()
            try:
                yield folder, result
            except BaseException as error:
                self.event("stopped", stage=stage, error=type(error).__name__)
                raise
            seconds = round(time.monotonic() - begin, 2)
            done = {
                "stage": stage,
                "fingerprint": key,
                "seconds": seconds,
                "result": result,
                "settings": self.settings.model_dump(),
                "reads": {name: self.need(name) for name in reads},
            }
            write_json(folder / FINISHED, done)
            if folder != self.folder(stage):
                self._replace(stage, folder, keep=keep)
            self.event("finished", stage=stage, fingerprint=key, seconds=seconds)

    def kept(self, stage: str) -> Path:
        """Where a stage's result goes when another one replaces it: the first free number."""
        numbers = (self.path / f"{stage}.{number}" for number in itertools.count(1))
        return next(folder for folder in numbers if not folder.exists())

    def _replace(self, stage: str, new: Path, *, keep: bool) -> None:
        """Put a stage's new result in the place of its old one."""
        folder = self.folder(stage)
        old = self.kept(stage) if keep else new.with_name(f"{new.name}.old")
        if not keep:
            shutil.rmtree(old, ignore_errors=True)  # of a process that was killed here
        folder.rename(old)
        new.rename(folder)
        if not keep:
            shutil.rmtree(old)
