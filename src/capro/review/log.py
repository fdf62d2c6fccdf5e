"""The log of decisions: one SQLite file that is only ever appended to, each row with its hash."""

from __future__ import annotations

import errno
import getpass
import hashlib
import itertools
import json
import shlex
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from capro.errors import RunError
from capro.pipeline import files
from capro.pipeline.artefacts import DECISIONS, REVIEW
from capro.pipeline.files import explained, writing
from capro.pipeline.run import Run
from capro.pipeline.working_copy import shown as shown_place

_SCHEMA = """
create table if not exists actions (
  number integer primary key autoincrement,
  at real not null, who text not null, kind text not null, target integer, shown text not null, hash text
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


class DamagedRowError(ValueError):
    """A row is not what was written; the text says what is wrong with it."""


def prepare(base: sqlite3.Connection) -> None:
    """Make the tables; those of an earlier version get the column with the hash."""
    base.executescript(_SCHEMA)
    if _has_hash(base):
        return
    base.execute("begin immediate")
    if not _has_hash(base):  # no other process was quicker
        base.execute("alter table actions add column hash text")
    base.execute("commit")


def _has_hash(base: sqlite3.Connection) -> bool:
    return any(column[1] == "hash" for column in base.execute("pragma table_info(actions)"))


def last_number(base: sqlite3.Connection) -> int:
    """The number of the last action that was ever written."""
    found = base.execute("select seq from sqlite_sequence where name = 'actions'").fetchone()
    return found[0] if found and isinstance(found[0], int) else 0


def digest(head: Sequence[Any], decisions: Sequence[Sequence[Any]]) -> str:
    """A hash of an action's row, without the hash itself, and of the rows of its decisions, without its number.

    >>> digest([1, 0.5, "me"], []) == digest((1, 0.5, "me"), ()), digest([1], []) == digest([2], [])
    (True, False)
    """
    return hashlib.sha256(json.dumps([head, decisions]).encode()).hexdigest()


def check(head: Sequence[Any], decisions: Sequence[Sequence[Any]], hash_: str | None) -> None:
    """Refuse an action whose rows are not those that its hash was made of."""
    try:
        same = hash_ is None or digest(head, decisions) == hash_
    except TypeError:  # bytes in the place of a text
        same = False
    if not same:
        raise DamagedRowError("its rows are not those that were written")


def names_in(cell: Any) -> tuple[str, ...]:
    """A cell with a list of names.

    >>> names_in('["cat", "dog"]')
    ('cat', 'dog')
    """
    try:
        found = json.loads(cell)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DamagedRowError(f"{cell!r:.80} is no list of names")
    return tuple(found)


def shown_row(cell: Any) -> dict[str, Any]:
    """A cell with what was shown."""
    try:
        found = json.loads(cell)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DamagedRowError(f"{cell!r:.80} does not say what was shown")
    return found


def one_of(cell: Any, known: Collection[str]) -> str:
    """A cell with one of some words."""
    if cell not in known:
        raise DamagedRowError(f"the answer is {cell!r:.80}")
    return str(cell)


WAIT = 30.0  # seconds for another process's transaction
Answer = Literal["labels", "out", "copy", "unsure"]

_OF_THE_DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}


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
        self.damaged: list[str] = []  # what was left out, where that was asked for
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
    """The log of one run, open for reading and writing; safe to use from threads.

    Args:
        file: Where it is, or will be.
        leave_out: Leave damaged actions out, and name them in the replay, where else they are refused.
    """

    def __init__(self, file: Path, *, leave_out: bool = False) -> None:
        with writing(file):
            files.make_folder(file.parent)  # SQLite itself syncs the file and its folder
        self._lock = threading.RLock()
        self.replay = Replay()
        self._file, self._leave_out = file, leave_out
        with self._using():
            self._base = sqlite3.connect(file, timeout=WAIT, isolation_level=None, check_same_thread=False)
            self._base.execute("pragma journal_mode=wal")
            self._base.execute(f"pragma synchronous={'full' if files.wanted() else 'off'}")
            prepare(self._base)
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
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a message that quotes damaged text
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
        number = self.replay.last + 1  # all of them have been taken in, in the same transaction
        head = (number, time.time(), who, kind, target, json.dumps(dict(shown), ensure_ascii=False))
        rows = [_row(each) for each in decisions]
        self._base.execute(
            "insert into actions(number, at, who, kind, target, shown, hash) values (?, ?, ?, ?, ?, ?, ?)",
            (*head, digest(head, rows)),
        )
        self._base.executemany(
            "insert into decisions values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(number, *row) for row in rows]
        )

    def _writing(self) -> _Transaction:
        return _Transaction(self._base)

    def _take_in(self) -> list[Action]:
        since, last = self.replay.last, last_number(self._base)
        heads = self._base.execute(
            "select number, at, who, kind, target, shown, hash from actions where number > ? order by number",
            (since,),
        ).fetchall()
        last = max(last, heads[-1][0] if heads else since)
        if last == since:
            return []
        rows: dict[int, list[list[Any]]] = {}
        # no later than the last head: another process may append between the two statements
        for action, *cells in self._base.execute(
            "select * from decisions where action > ? and action <= ? order by rowid", (since, last)
        ):
            rows.setdefault(action, []).append(cells)
        found = []
        if last - since != len(heads):
            there = {head[0] for head in heads}
            self._damage(next(n for n in itertools.count(since + 1) if n not in there), "it is gone")
        for *head, hash_ in heads:
            try:
                found.append(_action(head, rows.get(head[0], []), hash_))
            except DamagedRowError as error:
                self._damage(head[0], str(error))
        for each in found:
            self.replay.add(each)
        return found

    def _damage(self, number: int, why: str) -> None:
        """An action is not what was written."""
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


def _explained(file: Path, error: sqlite3.Error | UnicodeDecodeError) -> RunError:
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


def _action(head: Sequence[Any], rows: Sequence[Sequence[Any]], hash_: str | None) -> Action:
    """An action from its rows in the file."""
    check(head, rows, hash_)
    number, at, who, kind, target, shown = head
    return Action(number, at, who, kind, target, shown_row(shown), tuple(_decision(*row) for row in rows))


def _decision(
    sample: Any, answer: Any, yes: Any, no: Any, whole: Any, anchor: Any, given: Any, proposed: Any, random: Any
) -> Decision:  # fmt: skip
    """A decision from its row in the file."""
    lists = [names_in(cell) for cell in (yes, no, given, proposed)]
    said: Any = one_of(answer, get_args(Answer))
    return Decision(
        str(sample), said, lists[0], lists[1], bool(whole), bool(anchor), lists[2], lists[3], bool(random)
    )


def _row(each: Decision) -> tuple[Any, ...]:
    """The row of a decision, without the number of its action."""
    lists = [
        json.dumps([*names], ensure_ascii=False) for names in (each.yes, each.no, each.given, each.proposed)
    ]
    return (
        each.sample,
        each.answer,
        *lists[:2],
        int(each.whole),
        int(each.anchor),
        *lists[2:],
        int(each.random),
    )


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
