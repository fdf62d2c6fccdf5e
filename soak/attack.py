"""What an attack is, what a case of it may find, and where failing cases are kept."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Broken(Exception):
    """A promise that capro did not keep."""


@dataclass(frozen=True)
class Outcome:
    """What a case did: faults that struck, inputs that were read."""

    faults: int = 0
    inputs: int = 0


Strike = Callable[[int, random.Random, Path], Outcome]  # number, its random choices, an empty folder


@dataclass(frozen=True)
class Attack:
    """A kind of attack.

    Attributes:
        name: For ``--only`` and the table.
        goal: Faults or inputs after which it is enough.
        share: Of the whole time, relative to the other attacks.
        ready: Makes what all cases need, in a folder, and returns the function that does a case.
        batch: Cases that one process does; 0: the case starts processes of its own.
    """

    name: str
    goal: int
    share: float
    ready: Callable[[Path], Strike]
    batch: int = 0


@dataclass
class Tally:
    """A line of the table."""

    name: str
    cases: int = 0
    faults: int = 0
    inputs: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, outcome: Outcome) -> None:
        """Count a case that capro survived."""
        with self.lock:
            self.cases += 1
            self.faults += outcome.faults
            self.inputs += outcome.inputs

    @property
    def done(self) -> int:
        """What the goal counts."""
        return self.faults or self.inputs


def choices(attack: str, seed: int, number: int) -> random.Random:
    """The random choices of a case."""
    return random.Random(f"{attack}:{seed}:{number}")


def keep_failure(root: Path, attack: str, seed: int, number: int, place: Path, reason: str) -> str:
    """Save a failing case with the command that repeats it; returns a line about it."""
    target = root / f"{attack}-{seed}-{number}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if place.exists():
        shutil.copytree(place, target / "case", symlinks=True, ignore=_special)
    command = f"python -m soak --only {attack} --seed {seed} --at {number}"
    (target / "failure.txt").write_text(f"{command}\n\n{reason}\n", "utf-8", "backslashreplace")
    return f"{command}: {reason.strip().splitlines()[0][:200] if reason.strip() else 'failed'}"


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes and devices: copying them would wait for ever."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if path.exists() and not (path.is_file() or path.is_dir())]
