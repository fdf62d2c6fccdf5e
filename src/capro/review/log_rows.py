"""The tables of the log of decisions, and whether their rows are what was written.

An action has a hash of itself and of its decisions. Actions are numbered without gaps, so one that is gone is
noticed too. An earlier version wrote no hash: of its rows the form alone is checked.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

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


def names(cell: Any) -> tuple[str, ...]:
    """A cell with a list of names.

    >>> names('["cat", "dog"]')
    ('cat', 'dog')
    """
    try:
        found = json.loads(cell)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DamagedRowError(f"{cell!r:.80} is no list of names")
    return tuple(found)


def shown(cell: Any) -> dict[str, Any]:
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
