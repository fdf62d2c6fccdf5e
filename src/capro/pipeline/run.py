"""The run directory: settings, finished stages and their artefacts, events, one process at a time.

A run directory holds ``run.yaml`` (resolved settings, versions, data fingerprint), one folder per
stage, and ``events.jsonl``. A stage folder's ``stage.json`` is written last and holds the stage's
fingerprint, a hash over its settings and over the stages it reads, and the settings it was made with. A
stage that returns a hash of what it wrote (``content``) is known by that to the stages behind it: a data
set that was copied elsewhere is scanned again, and nothing else is done again. It also holds checksums of
the stage's files (`capro.pipeline.checksums`): a file that is not what its stage wrote is not read.

A finished stage that is done again is worked on in ``.redo/STAGE``: what is there stays until the new
result is whole. ``run.yaml`` changes only under the lock.
"""

from __future__ import annotations

import itertools
import json
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import yaml

from capro import __version__
from capro.config import Settings, validate
from capro.errors import ConfigError, RunError, first_line
from capro.files import NotAFileError, parse_yaml, read_regular
from capro.pipeline import artefacts, checksums
from capro.pipeline.artefacts import EVENTS, FINISHED, NOT_FINITE, SETTINGS, Artefact
from capro.pipeline.files import make_folder, rename, sync, writing
from capro.pipeline.locks import LOCK, alone_in
from capro.pipeline.ranks import is_main_process
from capro.pipeline.working_copy import WorkingCopy, copy_of, shown

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
VERSIONED = ("torch", "transformers", "accelerate", "faiss-cpu", "kornia", "numpy", "Pillow")
REDO = ".redo"  # where a finished stage is done again


def _document(path: Path) -> dict[str, Any]:
    """What run.yaml holds; empty if it is absent or damaged, and another version's is refused."""
    try:
        document = parse_yaml(read_regular(path / SETTINGS).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, NotAFileError, ValueError, yaml.YAMLError):
        return {}
    if not isinstance(document, dict) or "layout" not in document:
        return {}
    artefacts.RUN_FORMAT.check(
        document["layout"],
        place=shown(path),
        made_by=document.get("capro"),
        again="give a new folder to --run",
    )
    return document if checksums.is_sealed(document) else {}


def settings_in(path: Path) -> Settings | None:
    """The settings in a folder's run.yaml; None if it is absent or damaged."""
    document = _document(path)
    values = document.get("settings")
    if not isinstance(values, dict):
        return None
    try:
        return validate(values, place=f"{shown(path)}/{SETTINGS}")
    except ConfigError as error:
        if document.get("capro") == __version__:
            raise
        raise ConfigError(
            f"{error}; the run was made by capro {document.get('capro')}, this is {__version__}",
            hint="install that version, or give a new folder to --run",
        ) from None


@dataclass(frozen=True)
class Run:
    """A run directory and its settings.

    Attributes:
        path: The directory.
        settings: Settings of the next stages.
        hashed: None, or the files hashed so far, where every file is hashed before it is first read.
    """

    path: Path
    settings: Settings
    hashed: set[Path] | None = field(default=None, kw_only=True, compare=False)

    @staticmethod
    def create(path: Path, settings: Settings) -> Run:
        """Make a run directory, or open one with these settings, which are written at once."""
        run = Run(path, settings)
        if settings_in(path) != settings:
            run.save_settings()
        return run

    @staticmethod
    def open(path: Path) -> Run:
        """Open an existing run directory, with the settings in its run.yaml."""
        command = f"capro run --data SOURCE --run {shlex.quote(shown(path))}"
        if not (path / SETTINGS).exists():
            raise RunError(
                f"{shown(path)}: no {SETTINGS}, so not a run directory", hint=f"make one with `{command}`"
            )
        settings = settings_in(path)
        if settings is None:
            raise RunError(
                f"{shown(path)}/{SETTINGS}: damaged, or changed by hand",
                hint=f"`{command}` with the options of the first "
                "time writes it again; stages that were made with these settings stay as they are",
            )
        return Run(path, settings)

    @property
    def copy(self) -> WorkingCopy | None:
        """What keeps this directory and an object store the same; None for one of this machine alone."""
        return copy_of(self.path)

    @property
    def place(self) -> str:
        """The run as its user calls it, for messages and commands: its path, or its address."""
        return shown(self.path)

    def thoroughly(self) -> Self:
        """The same run, whose files are all hashed before they are read: for what leaves it."""
        return replace(self, hashed=set())

    def with_settings(self, settings: Settings) -> Self:
        """The same directory under other settings; nothing is written."""
        return replace(self, settings=settings)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process changes the directory meanwhile; of several ranks the main one has the lock."""
        if not is_main_process():
            yield
            return
        with (
            alone_in(self.path, "capro is working in this run"),
            self.copy.alone() if self.copy else nullcontext(),
        ):
            yield

    @contextmanager
    def updating_file(self, file: Path) -> Iterator[None]:
        """Write one file alone in the directory; what killed attempts left of it goes, an object store gets it."""
        with self.alone():
            for left in artefacts.temporaries(file.parent, file.name):
                left.unlink()
            yield
            if self.copy is not None:
                self.copy.push_file(file.relative_to(self.path).as_posix())

    def write_sealed(self, artefact: Artefact[dict[str, Any]], document: Mapping[str, Any]) -> None:
        """Keep what a command found beside a stage's results, with a hash of itself."""
        file = self.file(artefact)
        with self.updating_file(file):
            artefact.save(file, checksums.sealed(document))

    def find_sealed(self, artefact: Artefact[dict[str, Any]]) -> dict[str, Any] | None:
        """What a command kept beside a stage's results; None where there is nothing."""
        file = self.file(artefact)
        if not self.check_finished(artefact.stage) or not file.exists():
            return None
        document = checksums.read_sealed(file)
        if document is None:
            raise RunError(
                f"{file}: damaged, or changed by hand",
                hint=f"`capro {artefact.stage} {shlex.quote(self.place)}` writes it again",
            )
        return document

    def save_settings(self) -> None:
        """Write run.yaml where it changes, under the lock; a new run's directory is made."""
        if not is_main_process():
            return
        path, file = self.path, self.path / SETTINGS
        _document(path)  # another version's is refused
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is a file", hint="give a folder to --run")
        # a process that was killed before it had written the first run.yaml leaves its lock and temporaries;
        # listed first, since another one may be writing it now
        foreign = path.is_dir() and {*path.iterdir()} - {path / LOCK, *artefacts.temporaries(path, SETTINGS)}
        if not file.exists() and (foreign or (self.copy is not None and self.copy.is_foreign())):
            raise RunError(
                f"{self.place}: not empty and not a run directory", hint="give a new folder to --run"
            )
        with writing(path):
            make_folder(path)
        with self.updating_file(file):
            text = self._settings_text()
            if not file.exists() or file.read_text("utf-8", errors="replace") != text:
                artefacts.write_text(file, text)

    def _settings_text(self) -> str:
        """The content of run.yaml, the hash of itself first."""
        document = {
            "capro": __version__,
            "layout": artefacts.RUN_FORMAT.now,
            "python": platform.python_version(),
            "versions": {name: metadata.version(name) for name in VERSIONED},
            "seed": self.settings.seed,
            "data": self.identity("scan") if self.finished("scan") else None,
            "settings": self.settings.model_dump(),
        }
        sealed = checksums.sealed(document)
        first = {checksums.SELF: sealed[checksums.SELF]}
        return yaml.safe_dump(first | sealed, sort_keys=False, allow_unicode=True)

    def event(self, name: str, **values: Any) -> None:
        """Append a line to events.jsonl; one write call, so lines never interleave."""
        if not is_main_process():
            return
        row = {"time": round(time.time(), 3), "event": name, **values}
        log = self.path / EVENTS
        with writing(log), log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    # --- artefacts --------------------------------------------------------------------------------

    def folder(self, stage: str) -> Path:
        """Return the folder of a stage."""
        return self.path / stage

    def file(self, artefact: Artefact[Any]) -> Path:
        """Return the path of an artefact, whether it exists or not."""
        return self.path / artefact.stage / artefact.file

    def read(self, artefact: Artefact[T]) -> T:
        """Return the content of an artefact; an error where its stage has not finished."""
        return self.read_with(artefact, artefact.load)

    def read_with(self, artefact: Artefact[Any], load: Callable[[Path], T]) -> T:
        """What a function makes of the file of an artefact, whose stage must have finished."""
        self.identity(artefact.stage)
        file = self.file(artefact)
        self._check(artefact)
        if not file.exists():
            raise RunError(f"{file}: no such file", hint=self._mend(artefact.stage, file))
        try:
            artefact.check(file)
            return load(file)
        except Exception as error:
            if not checksums.says_damaged(error):
                raise
            raise self._damage(artefact.stage, file, f" ({first_line(error)})") from error

    def find(self, artefact: Artefact[T]) -> T | None:
        """Return the content of an artefact; None where its stage has not finished or did not write it."""
        if not self.check_finished(artefact.stage):
            return None
        self._check(artefact)
        return self.read(artefact) if self.file(artefact).exists() else None

    def pull(self, *stages: str) -> None:
        """Fetch finished stages that are only in the object store, whole; nothing to do in a run of this machine."""
        for stage in stages:
            if self.copy is not None:
                self.copy.pull(stage)

    def check_finished(self, stage: str) -> bool:
        """Whether a stage has finished; one whose files are damaged is refused."""
        if self.finished(stage) is None:
            self.refuse_damaged(stage)
            return False
        return True

    def damaged(self, stage: str) -> list[Path]:
        """The files of a finished stage that are not, or no longer, what it wrote."""
        if self.copy is not None and self.copy.is_remote(stage):
            return []  # `pull` compares the files with their hashes
        files = (self.finished(stage) or {}).get("files", {})
        named = {self.path / stage / name: record for name, record in files.items()}
        return [file for file, record in named.items() if not self._same(file, record)]

    def _same(self, file: Path, record: Mapping[str, Any]) -> bool:
        thorough = self.hashed is not None and file not in self.hashed
        same = checksums.same(file, record, thorough=thorough)
        if same and self.hashed is not None:
            self.hashed.add(file)
        return same

    def _check(self, artefact: Artefact[Any]) -> None:
        """Refuse a file that is not what its stage wrote."""
        self.pull(artefact.stage)
        record = (self.finished(artefact.stage) or {}).get("files", {}).get(artefact.file)
        file = self.file(artefact)
        if record is not None and not self._same(file, record):
            raise self._damage(artefact.stage, file)

    def refuse_damaged(self, stage: str) -> None:
        """Stop where a file of a finished stage, or its stage.json, is damaged."""
        file = self.path / stage / FINISHED
        if file.exists() and self.finished(stage) is None:
            raise self._damage(stage, file)
        for damaged in self.damaged(stage):
            raise self._damage(stage, damaged)

    def _damage(self, stage: str, file: Path, why: str = "") -> RunError:
        """A file is not what its stage wrote."""
        state = "damaged" if file.exists() else "gone"
        text = f"{file}: {state} since the {stage} stage wrote it{why}"
        return RunError(text, hint=self._mend(stage, file))

    def _mend(self, stage: str, file: Path) -> str:
        """What to do about a damaged file: the stage gives the same file anew."""
        mark = self.path / stage / FINISHED
        again = f"`capro run --run {shlex.quote(self.place)}` does the {stage} stage again"
        noticed = file == mark or replace(self, hashed=None).damaged(stage)  # by `capro run` as well
        return again if noticed else f"`rm {shlex.quote(str(mark))}`, then {again}"

    def issues(self) -> pd.DataFrame:
        """Return the verdicts, one row per training sample (docs/export.md)."""
        multi_label = self.find(artefacts.SAMPLE_VERDICTS)
        return self.read(artefacts.VERDICTS) if multi_label is None else multi_label

    # --- stages -----------------------------------------------------------------------------------

    def finished(self, stage: str) -> dict[str, Any] | None:
        """Return the stage.json of a finished stage; None if it has not finished, or the file is damaged."""
        return checksums.read_sealed(self.path / stage / FINISHED)

    def result(self, stage: str) -> dict[str, Any]:
        """Return the figures of a finished stage."""
        self.identity(stage)
        return dict((self.finished(stage) or {})["result"])

    def stamp(self, stage: str) -> int | None:
        """When a stage finished, in nanoseconds: another number after it was done again."""
        file = self.path / stage / FINISHED
        return file.stat().st_mtime_ns if file.exists() else None

    def identity(self, stage: str) -> str:
        """What a stage that must have finished is known by: its content's hash, or its fingerprint."""
        done = self.finished(stage)
        if done is None:
            self.refuse_damaged(stage)
            raise RunError(
                f"{self.place}: the {stage} stage has not finished",
                hint=f"`capro run --run {shlex.quote(self.place)}` does the stages that are missing",
            )
        return str((done.get("result") or {}).get("content", done["fingerprint"]))

    def prepare_folder(self, stage: str, key: str) -> None:
        """Make the folder in which a stage with this fingerprint is, or will be."""
        del key  # for runs that share stages: bench.store
        folder, redone = self.folder(stage), self.path / REDO / stage
        # killed while the new took the old's place
        if not folder.exists() and checksums.read_sealed(redone / FINISHED):
            rename(redone, folder)
        with writing(folder):
            make_folder(folder)

    def workplace(self, stage: str) -> Path:
        """Where a stage is worked on: its folder, or beside it while that holds a finished result."""
        return self.path / REDO / stage if self.finished(stage) else self.folder(stage)

    @contextmanager
    def working(
        self, stage: str, key: str, made_of: Mapping[str, Any] | None = None, *, keep: bool = False
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """A stage's work, alone in the directory: a folder, and figures that go to stage.json.

        Args:
            stage: Its name.
            key: Its fingerprint.
            made_of: What decided it, for stage.json: the stages that it read, files outside, decisions.
            keep: Keep a finished result that this one replaces, under a number.
        """
        with self.alone():
            folder = self.workplace(stage)
            with writing(folder):
                make_folder(folder)
                (folder / FINISHED).unlink(missing_ok=True)
                sync(folder)  # no power cut leaves it beside files of this attempt
                for left in artefacts.temporaries(folder):
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
                **(made_of or {"reads": {}, "source": "", "decisions": ""}),
                "files": checksums.recorded(folder, leave_out=FINISHED),
            }
            artefacts.write_json(folder / FINISHED, checksums.sealed(done))
            if folder != self.folder(stage):
                self._replace(stage, folder, keep=keep)
            self.event("finished", stage=stage, fingerprint=key, seconds=seconds)
            if self.copy is not None:
                self.copy.push_finished()

    def remove_work(self, stage: str) -> None:
        """Remove what a finished stage needed to go on after a kill, and the samples that stopped an attempt."""
        for folder in self.folder(stage).iterdir():
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        (self.folder(stage) / NOT_FINITE).unlink(missing_ok=True)

    def next_number(self, stage: str) -> Path:
        """Where a stage's result goes when another one replaces it: the first free number."""
        numbers = (self.path / f"{stage}.{number}" for number in itertools.count(1))
        return next(folder for folder in numbers if not folder.exists())

    def _replace(self, stage: str, new: Path, *, keep: bool) -> None:
        """Put a stage's new result in the place of its old one."""
        folder = self.folder(stage)
        if keep:
            old = self.next_number(stage)
            self.pull(stage)
        else:
            old = new.with_name(f"{new.name}.old")
            shutil.rmtree(old, ignore_errors=True)  # of a process that was killed here
        with writing(folder):
            rename(folder, old)
            rename(new, folder)
        if not keep:
            shutil.rmtree(old)
