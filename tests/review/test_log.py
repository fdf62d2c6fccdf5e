"""The log: appended to, replayed, shared by processes, and never missing a decision."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.errors import RunError
from capro.pipeline.files import DiskError
from capro.review.answers import Decision
from capro.review.log import Log, Replay


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "review" / "decisions.sqlite")


def label(sample: str, *names: str, **more: object) -> Decision:
    return Decision(sample, "labels", yes=names, **more)  # type: ignore[arg-type]


def test_the_last_decision_counts_and_undo_goes_step_by_step(log: Log) -> None:
    log.decide([label("a", "cat")], person="me")
    log.decide([label("a", "dog"), Decision("b", "out")], person="me")
    assert log.replay.current("a") == label("a", "dog")
    log.append("undo", "me", {})
    assert log.replay.current("a") == label("a", "cat")
    assert log.replay.current("b") is None
    log.append("undo", "me", {})
    assert log.replay.decided() == {}
    log.append("redo", "me", {})
    log.append("redo", "me", {})
    assert log.replay.current("b") == Decision("b", "out")
    log.append("undo", "me", {})
    log.decide([label("c", "cat")], person="me")
    assert log.append("redo", "me", {}) == []  # a new decision ends what could be done again
    assert log.append("undo", "nobody", {}) == []


def test_what_is_sent_again_after_a_lost_answer_is_one_action(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    first = Log(file)
    first.decide([label("a", "cat")], person="me", context={"sent": "1"})
    first.decide([label("a", "dog")], person="me", context={"sent": "2"})
    first.close()  # killed before it answered
    log = Log(file)
    again = log.decide([label("a", "dog")], person="me", context={"sent": "2"})
    assert [action.number for action in again] == [2]  # whoever asks hears what became of it
    assert (
        log.append("undo", "me", {"sent": "3"})[-1].number
        == log.append("undo", "me", {"sent": "3"})[-1].number
        == 3
    )
    assert log.replay.current("a") == label("a", "cat")
    assert len(log.replay.actions) == 3


def test_everybody_undoes_their_own(log: Log) -> None:
    log.decide([label("a", "cat")], person="ann")
    log.decide([label("b", "dog")], person="ben")
    log.append("undo", "ann", {})
    assert [*log.replay.decided()] == ["b"]


def test_undo_works_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    first = Log(file)
    first.decide(
        [label("a", "cat", given=("dog",), proposed=("cat",), random=True)],
        person="me",
        context={"view": "x"},
    )
    first.close()
    second = Log(file)
    assert second.replay.current("a") == label("a", "cat", given=("dog",), proposed=("cat",), random=True)
    assert second.replay.actions[1].context == {"view": "x"}
    second.append("undo", "me", {})
    second.close()
    third = Log(file)
    assert third.replay.decided() == {}
    third.append("redo", "me", {})
    assert [*third.replay.decided()] == ["a"]
    assert [undone for _, _, undone in third.replay.history("a")] == [False]


def test_single_labels_are_added_to_what_was_settled(log: Log) -> None:
    log.decide([Decision("a", "labels", yes=("x", "y"))], person="me")
    log.decide([Decision("a", "labels", yes=("z",), whole=False)], person="me")
    log.decide([Decision("a", "labels", no=("x",), whole=False)], person="me")
    found = log.replay.current("a")
    assert found is not None
    assert (set(found.yes), found.whole) == ({"y", "z"}, True)
    log.decide([Decision("b", "labels", yes=("x",), whole=False)], person="me")
    log.decide([Decision("b", "labels", no=("x",), whole=False)], person="me")
    other = log.replay.current("b")
    assert other is not None
    assert (other.yes, other.no, other.whole) == ((), ("x",), False)


def test_what_was_shown_first_stays(log: Log) -> None:
    log.decide([label("a", "cat", given=("dog",), proposed=("dog",), random=True)], person="me")
    log.decide([label("a", "cow", given=("dog",), proposed=("cat",))], person="me")  # shown after an Apply
    found = log.replay.current("a")
    assert found == label("a", "cow", given=("dog",), proposed=("dog",), random=True)


def test_nothing_can_be_changed_or_removed(log: Log, tmp_path: Path) -> None:
    log.decide([label("a", "cat")], person="me")
    base = sqlite3.connect(tmp_path / "review" / "decisions.sqlite")
    for statement in (
        "delete from actions",
        "update actions set decisions = '[]'",
        "update actions set who = 'x'",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="only appended"):
            base.execute(statement)


def test_two_connections_see_each_other_and_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    logs = [Log(file), Log(file)]

    def write(which: int) -> None:
        for number in range(50):
            logs[which].decide([label(f"{which}-{number}", "cat")], person=f"{which}")

    threads = [threading.Thread(target=write, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.refresh()
        assert len(log.replay.decided()) == 100
    assert logs[0].replay.decided().keys() == logs[1].replay.decided().keys()


KILLED = """
import sys
from pathlib import Path
from capro.review.answers import Decision
from capro.review.log import Log
log = Log(Path(sys.argv[1]))
for number in range(10_000):
    log.decide([Decision(f"s{number}", "out")], person="me")
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_confirmed(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    command = [sys.executable, "-c", KILLED, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(40)]
        os.kill(writer.pid, signal.SIGKILL)
    found = Log(file).replay.decided()
    assert {f"s{number}" for number in confirmed} <= found.keys()


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    file.write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=r"log\.sqlite: the log of decisions cannot be used"):
        Log(file)


def changed(file: Path, *statements: str) -> None:
    """Change rows as a failing disk does: nothing forbids it."""
    with closing(sqlite3.connect(file)) as base, base:
        for name in ("actions_stay", "actions_remain"):
            base.execute(f"drop trigger if exists {name}")
        for statement in statements:
            base.execute(statement)


CHANGED = "update actions set decisions = {} where number = 2"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (CHANGED.format("replace(decisions, 'cat', 'cau')"), "it is not what was written"),
        (CHANGED.format("substr(decisions, 2)"), "it is not what was written"),
        (CHANGED.format("x'00ff'"), "it is not what was written"),
        (CHANGED.format("'[]'"), "it is not what was written"),
        ("update actions set kind = 'undo' where number = 2", "it is not what was written"),
        ("delete from actions where number = 2", "it is gone"),
    ],
)
def test_a_damaged_action_is_refused_and_the_others_can_be_saved(
    tmp_path: Path, statement: str, why: str
) -> None:
    file = tmp_path / "run" / "review" / "decisions.sqlite"
    log = Log(file)
    for name in "abc":
        log.decide([label(name, "cat"), Decision(f"{name}2", "out")], person="me")
    log.close()
    changed(file, statement)
    with pytest.raises(RunError, match=rf"action 2 of the log of decisions is damaged: {why}") as found:
        Log(file)
    assert f"capro review {tmp_path / 'run'} --export saved.csv" in found.value.hint
    left = Log(file, leave_out=True).replay
    assert [*left.decided()] == ["a", "a2", "c", "c2"]
    assert [why in text for text in left.damaged] == [True]


def test_no_flipped_bit_changes_decisions_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "review" / "decisions.sqlite"
    log = Log(file)
    for number in range(30):
        log.decide([label(f"{number}-{each}", "cat") for each in range(number % 5 + 1)], person="me")
    log.close()
    whole, wanted, refused = file.read_bytes(), log.replay.decided(), 0
    rng = random.Random(1)
    for _ in range(150):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        for left in file.parent.iterdir():
            left.unlink()
        file.write_bytes(flipped)
        try:
            log = Log(file)
        except RunError:
            refused += 1
        else:
            assert log.replay.decided() == wanted
            log.close()
    assert refused > 20


def test_the_last_action_is_missed_too(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    log = Log(file)
    log.decide([label("a", "cat")], person="me")
    log.decide([label("b", "cat")], person="me")
    log.close()
    changed(file, "delete from actions where number = 2")
    with pytest.raises(RunError, match="action 2 of the log of decisions is damaged: it is gone"):
        Log(file)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.sampled_from("ab"), st.sampled_from(["cat", "dog"])),
        st.tuples(st.just("undo"), st.just(""), st.just("")),
        st.tuples(st.just("redo"), st.just(""), st.just("")),
    ),
    max_size=12,
)


@given(steps)
def test_replay_equals_a_stack_of_states(given_steps: list[tuple[str, str, str]]) -> None:
    """A slow reference: undo and redo move along a list of whole states."""
    from capro.review.log import Action

    replay = Replay()
    states: list[dict[str, str]] = [{}]
    at = 0
    for number, (kind, sample, name) in enumerate(given_steps, start=1):
        if kind == "decide":
            states = [*states[: at + 1], {**states[at], sample: name}]
            at += 1
            replay.add(Action(number, 0.0, "me", "decide", None, {}, (label(sample, name),)))
        else:
            target = replay.next_target(kind, "me")
            at = max(0, at - 1) if kind == "undo" else min(len(states) - 1, at + 1)
            if target is not None:
                replay.add(Action(number, 0.0, "me", kind, target.number, {}))
        assert {sample: each.yes[0] for sample, each in replay.decided().items()} == states[at]


def test_a_decision_is_on_the_disk_before_it_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronous(file: Path) -> int:
        return int(Log(file)._base.execute("pragma synchronous").fetchone()[0])

    monkeypatch.setenv("CAPRO_FSYNC", "1")
    assert synchronous(tmp_path / "a" / "log.sqlite") == 2  # FULL: each commit waits for the disk
    monkeypatch.setenv("CAPRO_FSYNC", "0")
    assert synchronous(tmp_path / "b" / "log.sqlite") == 0


def test_a_log_on_a_disk_that_cannot_be_written_names_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    log = Log(file)
    log._base.execute("pragma query_only=1")
    with pytest.raises(DiskError, match=r"log\.sqlite: the disk is mounted read-only"):
        log.decide([label("a", "cat")], person="me")
    log._base.execute("pragma query_only=0")
    log._base.execute("pragma max_page_count=1")  # no more than it has
    with pytest.raises(DiskError, match=r"log\.sqlite: no space is left on the disk"):
        log.decide([label(f"{number}" * 500, "cat") for number in range(100)], person="me")
    assert log.replay.decided() == {}
    log._base.execute("pragma max_page_count=1000000")
    log.decide([label("b", "cat")], person="me")  # nothing is left of the transaction that failed
    assert [*Log(file).replay.decided()] == ["b"]
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="is a file, not a folder"):
        Log(tmp_path / "file" / "log.sqlite")
