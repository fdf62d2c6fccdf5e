"""The tiny pipelines that are attacked: their commands, and what each of them leaves undisturbed.

`paper` is CAPro as published with a network that learns, stage by stage. `plus` is the method plus with a frozen
encoder and with decisions of a person; then the data, the model and the report are written.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capro.data.manifest import manifest_of
from capro.pipeline.run import Run
from capro.review.answers import Decision
from capro.review.log import Log
from soak import child
from soak.attack import Broken
from soak.faults import Fault
from tests import tiny

Kind = Literal["paper", "plus"]
KINDS: tuple[Kind, ...] = ("paper", "plus")  # cases take turns
LOG = "review/decisions.sqlite"
VOLATILE = {"events.jsonl", ".lock", "decisions.sqlite-wal", "decisions.sqlite-shm"}
WRITTEN = (".html", ".md", ".json")  # with dates and times
TIMES = ("seconds", "time", "mtime", "mtime_ns", "made", "when", "check")  # and the hash over them
SETTINGS: dict[Kind, list[str]] = {
    "paper": ["views.size=16", "net.backbone=small", "train.epochs=2", "train.frozen_epochs=1"],
    "plus": ["method=plus", "net.mode=frozen", "net.frozen_views=0"],
}
STAGES = ("pretrain", "embed", "match", "train", "clean", "finetune", "evaluate")
COMMANDS: dict[Kind, list[tuple[str, ...]]] = {
    "paper": [(name, "--run", "RUN") for name in STAGES],
    "plus": [
        *((name, "--run", "RUN") for name in STAGES if name != "train"),
        ("export", "RUN", "--out", "OUT", "--to", "webdataset"),
        ("export-model", "RUN", "--out", "OUT"),
        ("report", "RUN", "--out", "OUT"),
    ],
}
UPWARDS = re.compile(r"(\.\./)+[\w./-]*")  # the way from an export to its pictures
MOVING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?|\b\d+\.\d s\b")  # dates and times in what is printed
_made: dict[tuple[Path, Kind], Pipeline] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Step:
    """A command of the pipeline and what it did undisturbed."""

    words: tuple[str, ...]  # RUN and OUT stand for the run directory and for what is written beside it
    before: Path | None  # the run directory as the command finds it
    after: Path
    out: Path | None  # what it writes beside the run directory
    seconds: float
    moments: int  # writes, before and after each

    def command(self, run: Path) -> list[str]:
        """The command for a run directory."""
        return filled(self.words, run)

    def attacked(self, run: Path) -> str:
        """The folder whose writes count."""
        return str(run if self.out is None else run.parent)

    def is_out(self, run: Path) -> bool:
        """Whether what it writes beside the run directory is there: then it is refused to write it again."""
        return self.out is not None and _out(run).exists() and self.words[0] != "report"

    def goes_on(self, run: Path) -> child.Ended | None:
        """The command once more; None where there is nothing left to do."""
        return None if self.is_out(run) else child.run(*self.command(run))

    def differs(self, run: Path) -> str:
        """What is not as it is undisturbed; empty where all is."""
        return difference(self.after, run) or ("" if self.out is None else difference(self.out, _out(run)))


@dataclass(frozen=True)
class Pipeline:
    """A finished run and the way to it."""

    data: Path
    steps: tuple[Step, ...]

    @property
    def points(self) -> list[tuple[Step, int]]:
        """Every write of every command, in an order that a short attack can stop at."""
        found = [(step, at) for step in self.steps for at in range(1, step.moments + 1)]
        random.Random(0).shuffle(found)
        return found

    @property
    def finished(self) -> Path:
        """The run directory after the last stage."""
        return [step for step in self.steps if step.out is None][-1].after


def filled(words: Sequence[str], run: Path) -> list[str]:
    """A command for a run directory."""
    return [{"RUN": str(run), "OUT": str(_out(run))}.get(word, word) for word in words]


def _out(run: Path) -> Path:
    return run.parent / "out"


def pipeline(folder: Path, kind: Kind = "paper") -> Pipeline:
    """An undisturbed pipeline, made once for a folder."""
    with _lock:
        if (folder, kind) not in _made:
            _made[folder, kind] = _make(folder / kind, kind)
        return _made[folder, kind]


def _make(folder: Path, kind: Kind) -> Pipeline:
    data = tiny.write_data(folder / "data", per_class=6)
    given = [
        f"data.classes={data / 'classes.yaml'}",
        *tiny.FAST,
        *SETTINGS[kind],
        "scan.workers=1",
        "log.checkpoint_minutes=1e-9",
    ]
    overrides = [word for value in given for word in ("--set", value)]
    preset = ("--preset", "paper") if kind == "paper" else ()
    commands = [("scan", str(data), *preset, *overrides, "--run", "RUN"), *COMMANDS[kind]]
    steps: list[Step] = []
    run = folder / "work" / "run"
    for number, words in enumerate(commands):
        before = steps[-1].after if steps else None
        after = folder / f"after-{number}-{words[0]}"
        place(before, run.parent)
        if words[0] == "match" and kind == "plus":
            _decide(run)
            before = folder / "decided"
            shutil.copytree(run, before)
        outside = "OUT" in words
        ended, seconds = child.timed(*filled(words, run), fault=Fault(str(run.parent if outside else run)))
        if ended.code:
            raise Broken(f"undisturbed, capro {words[0]} ended with {ended.code}: {ended.err}")
        shutil.copytree(run, after)
        out = folder / f"out-{number}-{words[0]}" if outside else None
        if out is not None:
            _out(run).rename(out)
        steps.append(Step(words, before, after, out, seconds, ended.moments))
    return Pipeline(data, tuple(steps))


def _decide(run: Path) -> None:
    """What a person might decide of the scanned samples."""
    log = Log(run / LOG)
    for number, sample in enumerate(manifest_of(Run.open(run)).samples["id"].head(3)):
        log.decide([Decision(str(sample), "out" if number else "copy")], person="me")
    log.close()


def place(source: Path | None, folder: Path) -> Path:
    """A run directory to attack, as a step finds it."""
    target = folder / "run"
    shutil.rmtree(target, ignore_errors=True)
    if source is not None:
        shutil.copytree(source, target, symlinks=True)
    return target


def difference(wanted: Path, found: Path, *, leave_out: tuple[str, ...] = ()) -> str:
    """What differs between two folders; empty where all files have the same bytes.

    Args:
        wanted: One folder.
        found: The other.
        leave_out: With what the names of files begin that do not count.
    """
    first, second = (
        {name: value for name, value in tree(run).items() if not name.startswith(leave_out)}
        for run in (wanted, found)
    )
    missing, more = sorted(first.keys() - second.keys()), sorted(second.keys() - first.keys())
    other = sorted(name for name in first.keys() & second.keys() if first[name] != second[name])
    parts = {"missing": missing, "too many": more, "other bytes": other}
    return "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in parts.items() if names)


def tree(folder: Path) -> dict[str, str]:
    """Every file with a hash of its bytes; of stage.json and its like without the times."""
    found = {}
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if path.is_file() and path.name not in VOLATILE:
            content = path.read_bytes()
            if path.name == "stage.json":
                document = _timeless(json.loads(content))
                if path.parent.name == "report":
                    document["files"] = sorted(document["files"])  # the page has its date
                content = json.dumps(document, sort_keys=True).encode()
            elif path.suffix in WRITTEN or path == folder:
                content = plain(content.decode("latin-1"), folder.parent).encode("latin-1")
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def plain(text: str, folder: Path) -> str:
    """A text without dates, times, and the folder in which it was written."""
    return UPWARDS.sub("PLACE", MOVING.sub("TIME", text.replace(str(folder), "FOLDER")))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
