"""The log of decisions: one SQLite file that is only ever appended to; each action has a hash."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import shlex
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capro.errors import RunError
from capro.pipeline import files
from capro.pipeline.artefacts import DECISIONS, REVIEW
from capro.pipeline.files import writing
from capro.pipeline.run import Run
from capro.pipeline.working_copy import shown as shown_place
from capro.review.answers import Decision

WAIT = 30.0  # seconds for another process's transaction
_SCHEMA = """
create table if not exists actions (
  number integer primary key autoincrement, at real not null, who text not null, kind text not null,
  target integer, shown text not null, decisions text not null, hash text not null
);
create trigger if not exists actions_stay before update on actions
  begin select raise(abort, 'the log is only appended to'); end;
create trigger if not exists actions_remain before delete on actions
  begin select raise(abort, 'the log is only appended to'); end;
"""
_DISK_ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}


@dataclass(frozen=True)
class Action:
    """One entry of the log.

    Attributes:
        number: Counted from 1, without gaps.
        time: Seconds since 1970.
        person: Who did it.
        kind: `decide`, `undo`, `redo`, or `class` for another meaning of a class.
        target: The action that was undone or redone.
        context: What the page showed, and the name that the sender gave to the request (``sent``).
        decisions: What was decided.
    """

    number: int
    time: float
    person: str
    kind: str
    target: int | None
    context: dict[str, Any]
    decisions: tuple[Decision, ...] = field(default=(), repr=False)


class Replay:
    """The present decisions, from the actions so far."""

    def __init__(self) -> None:
        self.last = 0
        self.damaged: list[str] = []  # actions that were left out
        self.actions: dict[int, Action] = {}
        self.undone: set[int] = set()
        self.by_sample: dict[str, list[tuple[int, Decision]]] = {}
        self.by_request: dict[str, Action] = {}  # by the name that the sender gave to the request
        self._done: dict[str, list[int]] = {}  # by person: what an undo takes back next
        self._redo: dict[str, list[int]] = {}

    def add(self, action: Action) -> None:
        """Follow the next action."""
        self.last = action.number
        self.actions[action.number] = action
        if action.context.get("sent"):
            self.by_request[action.context["sent"]] = action
        done, redo = self._done.setdefault(action.person, []), self._redo.setdefault(action.person, [])
        if action.kind == "decide":
            done.append(action.number)
            redo.clear()
            for decision in action.decisions:
                self.by_sample.setdefault(decision.sample, []).append((action.number, decision))
        elif action.kind == "undo" and action.target in done:
            done.remove(action.target)
            redo.append(action.target)
            self.undone.add(action.target)
        elif action.kind == "redo" and action.target in redo:
            redo.remove(action.target)
            done.append(action.target)
            self.undone.discard(action.target)

    def next_target(self, kind: str, person: str) -> Action | None:
        """The action that the next undo or redo of this person is about."""
        numbers = (self._done if kind == "undo" else self._redo).get(person)
        return self.actions[numbers[-1]] if numbers else None

    def current(self, sample: str) -> Decision | None:
        """What is decided about a sample now."""
        current: Decision | None = None
        for number, decision in self.by_sample.get(sample, ()):
            if number not in self.undone:
                current = decision.over(current)
        return current

    def decided(self) -> dict[str, Decision]:
        """Everything that is decided now, by sample, in the order of first decisions."""
        current = ((sample, self.current(sample)) for sample in self.by_sample)
        return {sample: decision for sample, decision in current if decision is not None}

    def history(self, sample: str) -> list[tuple[Action, Decision, bool]]:
        """What happened to a sample: actions with its decision, and whether each was undone."""
        return [
            (self.actions[number], decision, number in self.undone)
            for number, decision in self.by_sample.get(sample, ())
        ]

    def samples_of(self, actions: Sequence[Action]) -> list[str]:
        """Samples whose decision changes by actions, each once."""
        sources = [self.actions.get(action.target, action) if action.target else action for action in actions]
        return [*dict.fromkeys(decision.sample for source in sources for decision in source.decisions)]


class Log:
    """The log of one run, open for reading and writing; safe to use from threads.

    Args:
        file: Where it is, or will be.
        leave_out: Leave damaged actions out and name them in the replay, instead of refusing the log.
    """

    def __init__(self, file: Path, *, leave_out: bool = False) -> None:
        self._lock = threading.RLock()
        self.replay = Replay()
        self._file, self._leave_out = file, leave_out
        with self._errors_explained():
            files.make_folder(file.parent)  # SQLite itself syncs the file and its folder
            self._base = sqlite3.connect(file, timeout=WAIT, isolation_level=None, check_same_thread=False)
            self._base.execute("pragma journal_mode=wal")
            self._base.execute(f"pragma synchronous={'full' if files.wanted() else 'off'}")
            self._base.executescript(_SCHEMA)
        self.refresh()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

    def refresh(self) -> list[Action]:
        """Read what was appended since, also by other processes; returns it."""
        with self._lock, self._errors_explained():
            since = self.replay.last
            rows = self._base.execute(
                "select * from actions where number > ? order by number", (since,)
            ).fetchall()
            last = max(since, self._last_number(), rows[-1][0] if rows else 0)
            if last - since != len(rows):
                present = {row[0] for row in rows}
                missing = next(number for number in itertools.count(since + 1) if number not in present)
                self._report_damage(missing, "it is gone")
            new = []
            for *row, written in rows:
                if digest(row) != written:
                    self._report_damage(row[0], "it is not what was written")
                    continue
                number, at, person, kind, target, context, decisions = row
                decided = tuple(_decision(values) for values in json.loads(decisions))
                new.append(Action(number, at, person, kind, target, json.loads(context), decided))
            for action in new:
                self.replay.add(action)
            return new

    def decide(
        self, decisions: Sequence[Decision], *, person: str, context: Mapping[str, Any] | None = None
    ) -> list[Action]:
        """Append decisions as one action; returns what is new, others' actions included."""
        return self.append("decide", person, context or {}, decisions)

    def append(
        self, kind: str, person: str, context: Mapping[str, Any], decisions: Sequence[Decision] = ()
    ) -> list[Action]:
        """Append an action; returns what is new, others' actions included.

        An undo or redo is about this person's last action; nothing is appended where there is none.
        With ``sent`` in the context a sender names its request: whoever did not get the answer sends it
        again, and the action that is in the log already is returned, not appended once more.
        """
        with self._lock, self._errors_explained():
            with self._base:
                self._base.execute("begin immediate")  # at once, so that two writers wait for each other
                new = self.refresh()
                if repeated := self.replay.by_request.get(context.get("sent", "")):
                    return [*new, repeated]
                target = None
                if kind in ("undo", "redo"):
                    target = self.replay.next_target(kind, person)
                    if target is None:
                        return new
                row = [
                    self.replay.last + 1,
                    time.time(),
                    person,
                    kind,
                    target and target.number,
                    json.dumps(dict(context), ensure_ascii=False),
                    json.dumps([vars(decision) for decision in decisions], ensure_ascii=False),
                ]
                self._base.execute("insert into actions values (?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest(row)))
            return new + self.refresh()

    def _last_number(self) -> int:
        """The number of the last action that was ever written."""
        sequence = self._base.execute("select seq from sqlite_sequence where name = 'actions'").fetchone()
        return sequence[0] if sequence and isinstance(sequence[0], int) else 0

    def _report_damage(self, number: int, why: str) -> None:
        text = f"{self._file}: action {number} of the log of decisions is damaged: {why}"
        if self._leave_out:
            self.replay.damaged.append(text)
            return
        run = shlex.quote(shown_place(self._file.parent.parent))
        raise RunError(
            text,
            hint=f"put a copy of the file back; without one, `capro review {run} --export saved.csv` writes the other "
            f"decisions: move the file away, then `capro review {run} --import saved.csv`",
        )

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """SQLite's errors become messages with a way out."""
        with writing(self._file):
            try:
                yield
            # the latter: a message that quotes damaged text
            except (sqlite3.Error, UnicodeDecodeError) as error:
                code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the rest names the operation
                if code in _DISK_ERRORS:
                    raise OSError(_DISK_ERRORS[code], str(error), str(self._file)) from error
                raise RunError(
                    f"{self._file}: the log of decisions cannot be used: {error}",
                    hint=f"`sqlite3 {shlex.quote(str(self._file))} .recover` prints what can be saved; to start "
                    "again without it, move the file away",
                ) from error


def digest(row: Sequence[Any]) -> str:
    """A hash of an action's row, without the hash itself.

    >>> digest([1, 0.5, "me"]) == digest((1, 0.5, "me")), digest([1]) == digest([2])
    (True, False)
    """
    text = json.dumps(row, default=repr)  # repr: damage may leave bytes in the place of a text
    return hashlib.sha256(text.encode()).hexdigest()


def _decision(values: dict[str, Any]) -> Decision:
    """A decision from JSON, which has lists in the place of tuples."""
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return Decision(**tuples)


def log_file(run: Run) -> Path:
    """Where a run keeps its decisions."""
    return run.path / REVIEW / DECISIONS


def open_log(run: Run) -> Log:
    """The log of a run; made where there is none."""
    return Log(log_file(run))


def replayed(run: Run, *, leave_out: bool = False) -> Replay:
    """What is decided in a run; empty without a review.

    Args:
        run: The run.
        leave_out: Leave damaged actions out, and name them in the replay.
    """
    if not log_file(run).exists():
        return Replay()
    log = Log(log_file(run), leave_out=leave_out)
    log.close()
    return log.replay
