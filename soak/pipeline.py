"""The tiny pipeline that is attacked: its commands, what each of them leaves, and what it prints undisturbed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak import child
from soak.attack import Broken
from soak.faults import Fault
from tests import tiny

VOLATILE = {"events.jsonl", ".lock"}
TIMES = ("seconds", "time", "mtime", "mtime_ns", "made", "when", "check")  # and the hash over them
PAPER = ["views.size=16", "net.backbone=small", "train.epochs=2", "train.frozen_epochs=1"]
_made: dict[Path, Pipeline] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Step:
    """A command of the pipeline and what it did undisturbed."""

    words: tuple[str, ...]  # without the run directory
    before: Path | None  # the run directory as the command finds it
    after: Path
    seconds: float
    moments: int  # writes, before and after each

    def command(self, run: Path) -> list[str]:
        """The command for a run directory."""
        return [*self.words, "--run", str(run)]


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
        """The run directory after the last command."""
        return self.steps[-1].after


def pipeline(folder: Path) -> Pipeline:
    """The undisturbed pipeline, made once for a folder."""
    with _lock:
        if folder not in _made:
            _made[folder] = _make(folder)
        return _made[folder]


def _make(folder: Path) -> Pipeline:
    data = tiny.write_data(folder / "data", per_class=6)
    given = [
        f"data.classes={data / 'classes.yaml'}",
        *tiny.FAST,
        *PAPER,
        "scan.workers=1",
        "log.checkpoint_minutes=1e-9",
    ]
    overrides = [word for value in given for word in ("--set", value)]
    commands = [("scan", str(data), "--preset", "paper", *overrides)]
    commands += [(name,) for name in ("pretrain", "embed", "match", "train", "clean", "finetune", "evaluate")]
    steps: list[Step] = []
    run = folder / "work" / "run"
    for number, words in enumerate(commands):
        before = steps[-1].after if steps else None
        after = folder / f"after-{number}-{words[0]}"
        _place(before, run)
        ended, seconds = child.timed(*words, "--run", run, fault=Fault(str(run)))
        if ended.code:
            raise Broken(f"undisturbed, capro {words[0]} ended with {ended.code}: {ended.err}")
        shutil.copytree(run, after)
        steps.append(Step(words, before, after, seconds, ended.moments))
    return Pipeline(data, tuple(steps))


def _place(source: Path | None, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if source is not None:
        shutil.copytree(source, target, symlinks=True)


def place(source: Path | None, folder: Path) -> Path:
    """A run directory to attack, as a step finds it."""
    target = folder / "run"
    _place(source, target)
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
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in VOLATILE:
            content = path.read_bytes()
            if path.name == "stage.json":
                content = json.dumps(_timeless(json.loads(content)), sort_keys=True).encode()
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
