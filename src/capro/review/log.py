"""The log of decisions: one SQLite file that is only ever appended to.

An *action* is what a person did at once: a decision for one sample or for many, an undo, a redo, a change of
a class's meaning. Its rows say what was shown (given label, the method's proposal, whether the question was
drawn at random) and what was answered. Nothing is changed or removed: an undo is one more action, and the
present decisions follow by replaying the log. A commit is on the disk before the answer returns, so a killed
process loses nothing; several processes may write at once, each in a transaction of its own.

Cost: O(rows) to open, O(new rows) to follow what others append.
"""

from __future__ import annotations

import errno
import getpass
import json
import shlex
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from capro.errors import RunError
from capro.run import durable
from capro.run.artefacts import DECISIONS, REVIEW
from capro.run.directory import Run
from capro.run.disk_errors import explained, writing

WAIT = 30.0  # seconds for another process's transaction
Answer = Literal["labels", "out", "copy", "unsure"]

_OF_THE_DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}

_SCHEMA = """
create table if not exists actions (
  number integer primary key autoincrement,
  at real not null, who text not null, kind text not null, target integer, shown text not null
);
create table if not exists decisions (
  action integer not null references actions(number), sample text not null, answer text not null,
  yes text not null, no text not null, whole integer not null, anchor integer not null,
  given text not null, proposed text not null, random integer not null
);
create index if not exists decisions_of_action on decisions(action);
create trigger if not exists actions_stay before update on actions
  begin select raise(abort, 'the log is only appended to'); end;
create trigger if not exists actions_remain before delete on actions
  begin select raise(abort, 'the log is only appended to'); end;
create trigger if not exists decisions_stay before update on decisions
  begin select raise(abort, 'the log is only appended to'); end;
create trigger if not exists decisions_remain before delete on decisions
  begin select raise(abort, 'the log is only appended to'); end;
"""


@dataclass(frozen=True)
class Decision:
    """What a person said of one sample, and what was shown.

    Attributes:
        sample: Its id.
        answer: `labels`, `out` (shows none of the classes), `copy` (a near duplicate that may go), `unsure`.
        yes: Labels that it has; with one label per sample, that label.
        no: Labels that it has not, where not all are settled (several labels).
        whole: Whether every label outside `yes` is settled as absent.
        anchor: Whether it was picked as an example of its class.
        given: Web labels that were shown.
        proposed: The method's labels that were shown; empty: it dropped the sample.
        random: Whether the question was drawn at random.
    """

    sample: str
    answer: Answer
    yes: tuple[str, ...] = ()
    no: tuple[str, ...] = ()
    whole: bool = True
    anchor: bool = False
    given: tuple[str, ...] = ()
    proposed: tuple[str, ...] = ()
    random: bool = False

    def over(self, before: Decision | None) -> Decision:
        """This decision on top of an earlier one.

        What was shown first stays: once decisions were applied, the method proposes what the person said.
        Single labels are added to what was settled before.
        """
        if before is None:
            return self
        first: dict[str, Any] = {
            "given": before.given,
            "proposed": before.proposed,
            "random": before.random or self.random,
        }
        if self.whole or before.answer != "labels":
            return replace(self, **first)
        yes = tuple(n for n in before.yes if n not in self.no) + tuple(
            n for n in self.yes if n not in before.yes
        )
        no = tuple(n for n in before.no if n not in self.yes) + tuple(
            n for n in self.no if n not in before.no
        )
        return replace(self, yes=yes, no=() if before.whole else no, whole=before.whole, **first)


@dataclass(frozen=True)
class Action:
    """One line of the log."""

    number: int
    at: float
    who: str
    kind: str
    target: int | None
    shown: dict[str, Any]
    decisions: tuple[Decision, ...] = field(default=(), repr=False)


class Replay:
    """The present decisions, from the actions so far."""

    def __init__(self) -> None:
        self.last = 0
        self.actions: dict[int, Action] = {}
        self.undone: set[int] = set()
        self.sent: dict[str, int] = {}  # action by what its sender calls it
        self.of_sample: dict[str, list[tuple[int, Decision]]] = {}
        self._done: dict[str, list[int]] = {}  # by person: what an undo takes back next
        self._redo: dict[str, list[int]] = {}

    def add(self, action: Action) -> None:
        """Take in the next action."""
        self.last = action.number
        self.actions[action.number] = action
        if action.shown.get("sent"):
            self.sent[action.shown["sent"]] = action.number
        done, redo = self._done.setdefault(action.who, []), self._redo.setdefault(action.who, [])
        if action.kind == "decide":
            done.append(action.number)
            redo.clear()
            for each in action.decisions:
                self.of_sample.setdefault(each.sample, []).append((action.number, each))
        elif action.kind == "undo" and action.target in done:
            done.remove(action.target)
            redo.append(action.target)
            self.undone.add(action.target)
        elif action.kind == "redo" and action.target in redo:
            redo.remove(action.target)
            done.append(action.target)
            self.undone.discard(action.target)

    def known(self, sent: str) -> Action | None:
        """The action that its sender called so, if it has come already."""
        number = self.sent.get(sent)
        return None if number is None else self.actions[number]

    def next_undo(self, who: str) -> Action | None:
        """The action that an undo of this person takes back."""
        done = self._done.get(who)
        return self.actions[done[-1]] if done else None

    def next_redo(self, who: str) -> Action | None:
        """The action that a redo of this person brings back."""
        redo = self._redo.get(who)
        return self.actions[redo[-1]] if redo else None

    def current(self, sample: str) -> Decision | None:
        """What is decided of a sample now."""
        found: Decision | None = None
        for number, each in self.of_sample.get(sample, ()):
            if number not in self.undone:
                found = each.over(found)
        return found

    def decided(self) -> dict[str, Decision]:
        """Everything that is decided now, by sample, in the order of first decisions."""
        found = ((sample, self.current(sample)) for sample in self.of_sample)
        return {sample: each for sample, each in found if each is not None}

    def history(self, sample: str) -> list[tuple[Action, Decision, bool]]:
        """What happened to a sample: actions with its decision, and whether each was undone."""
        return [
            (self.actions[number], each, number in self.undone)
            for number, each in self.of_sample.get(sample, ())
        ]


def log_file(run: Run) -> Path:
    """Where a run keeps its decisions."""
    return run.path / REVIEW / DECISIONS


def person() -> str:
    """Whose decisions these are: the name of the user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user name
        return "person"


class Log:
    """The log of one run, open for reading and writing; safe to use from threads."""

    def __init__(self, file: Path) -> None:
        with writing(file):
            durable.make_folder(file.parent)  # SQLite itself syncs the file and its folder
        self._lock = threading.RLock()
        self.replay = Replay()
        self._file = file
        with self._using():
            self._base = sqlite3.connect(file, timeout=WAIT, isolation_level=None, check_same_thread=False)
            self._base.execute("pragma journal_mode=wal")
            self._base.execute(f"pragma synchronous={'full' if durable.wanted() else 'off'}")
            self._base.executescript(_SCHEMA)
        self.refresh()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """What reads or writes the file: SQLite's errors become messages."""
        try:
            yield
        except sqlite3.Error as error:
            raise _explained(self._file, error) from error

    def refresh(self) -> list[Action]:
        """Take in what was appended since, also by other processes; returns it."""
        with self._lock, self._using():
            return self._take_in()

    def decide(
        self, decisions: Sequence[Decision], *, who: str, shown: Mapping[str, Any] | None = None
    ) -> list[Action]:
        """Append decisions as one action; returns what is new, others' actions included.

        Under ``sent`` in ``shown`` a sender may give the action a name of its own: whoever did not hear the answer
        sends it again, and what is in the log already is returned, not appended once more.
        """
        return self._append("decide", who, shown or {}, decisions)

    def undo(self, who: str, sent: str = "") -> list[Action]:
        """Take this person's last action back; nothing is appended where there is none."""
        return self._turn("undo", who, sent)

    def redo(self, who: str, sent: str = "") -> list[Action]:
        """Bring back what this person took back last."""
        return self._turn("redo", who, sent)

    def note(self, kind: str, *, who: str, shown: Mapping[str, Any]) -> list[Action]:
        """Append something that is no decision on a sample, such as a class's new meaning."""
        return self._append(kind, who, shown, ())

    def _turn(self, kind: Literal["undo", "redo"], who: str, sent: str) -> list[Action]:
        with self._lock, self._using(), self._writing():
            found = self._take_in()
            if before := self.replay.known(sent):
                return [*found, before]
            target = self.replay.next_undo(who) if kind == "undo" else self.replay.next_redo(who)
            if target is None:
                return found
            self._insert(kind, who, target.number, {"sent": sent} if sent else {}, ())
            return found + self._take_in()

    def _append(
        self, kind: str, who: str, shown: Mapping[str, Any], decisions: Iterable[Decision]
    ) -> list[Action]:
        with self._lock, self._using():
            with self._writing():
                found = self._take_in()
                if before := self.replay.known(shown.get("sent", "")):
                    return [*found, before]
                self._insert(kind, who, None, shown, decisions)
            return found + self._take_in()

    def _insert(
        self, kind: str, who: str, target: int | None, shown: Mapping[str, Any], decisions: Iterable[Decision]
    ) -> None:
        values = (time.time(), who, kind, target, json.dumps(dict(shown), ensure_ascii=False))
        made = self._base.execute(
            "insert into actions(at, who, kind, target, shown) values (?, ?, ?, ?, ?)", values
        )
        rows = [
            (
                made.lastrowid, each.sample, each.answer, _names(each.yes), _names(each.no), each.whole,
                each.anchor, _names(each.given), _names(each.proposed), each.random,
            )
            for each in decisions
        ]  # fmt: skip
        self._base.executemany("insert into decisions values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _writing(self) -> _Transaction:
        return _Transaction(self._base)

    def _take_in(self) -> list[Action]:
        since = self.replay.last
        heads = self._base.execute(
            "select number, at, who, kind, target, shown from actions where number > ? order by number",
            (since,),
        ).fetchall()
        if not heads:
            return []
        rows: dict[int, list[Decision]] = {}
        # no later than the last head: another process may append between the two statements
        for action, *cells in self._base.execute(
            "select * from decisions where action > ? and action <= ? order by rowid", (since, heads[-1][0])
        ):
            rows.setdefault(action, []).append(_decision(*cells))
        found = [
            Action(number, at, who, kind, target, json.loads(shown), tuple(rows.get(number, ())))
            for number, at, who, kind, target, shown in heads
        ]
        for each in found:
            self.replay.add(each)
        return found


class _Transaction:
    """A write transaction that begins at once, so that two writers wait for each other."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base

    def __enter__(self) -> None:
        self._base.execute("begin immediate")

    def __exit__(self, kind: object, *_: object) -> None:
        if not kind:
            self._base.execute("commit")
        elif self._base.in_transaction:  # a full disk has ended it already
            self._base.execute("rollback")


def _explained(file: Path, error: sqlite3.Error) -> RunError:
    """What SQLite could not do, and the way out."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # without what is special to an operation
    if code in _OF_THE_DISK:
        found = explained(OSError(_OF_THE_DISK[code], str(error), str(file)), file)
        if found is not None:
            return found
    return RunError(
        f"{file}: the log of decisions cannot be used: {error}",
        hint=f"`sqlite3 {shlex.quote(str(file))} .recover` prints what can be saved; to start again without it, "
        "move the file away",
    )


def _decision(
    sample: str,
    answer: Answer,
    yes: str,
    no: str,
    whole: int,
    anchor: int,
    given: str,
    proposed: str,
    random: int,
) -> Decision:
    """A row of the file."""
    said, shown = ([tuple(json.loads(cell)) for cell in pair] for pair in ((yes, no), (given, proposed)))
    return Decision(
        sample, answer, said[0], said[1], bool(whole), bool(anchor), shown[0], shown[1], bool(random)
    )


def _names(names: Sequence[str]) -> str:
    return json.dumps([*names], ensure_ascii=False)


def open_log(run: Run) -> Log:
    """The log of a run; made where there is none."""
    return Log(log_file(run))


def replayed(run: Run) -> Replay:
    """What is decided in a run; empty without a review."""
    if not log_file(run).exists():
        return Replay()
    log = open_log(run)
    log.close()
    return log.replay
