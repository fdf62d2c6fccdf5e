"""Starting and stopping: the link works from the moment it is shown. Decisions of a run in an object store."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest

from capro.errors import ConfigError, RunError, StoreError
from capro.pipeline import working_copy
from capro.pipeline.run import Run
from capro.review import serving
from capro.review.answers import Decision
from capro.review.log import Log, log_file, replayed
from capro.review.pages import change_class
from capro.review.serving import Review, log_in_store
from capro.review.session import ReviewSession
from tests.stores import Fault, Flaky, Killed, Machine, flaky, on

__all__ = ["flaky", "on"]


def test_the_link_works_before_the_server_runs(run: Run) -> None:
    review = Review(run)
    with socket.create_connection(("127.0.0.1", review.port), timeout=5):
        pass
    review.start()
    with urllib.request.urlopen(review.link) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{review.port}/")
    review.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", review.port), timeout=5)


def test_a_port_that_is_taken_is_named(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RunError, match=r"127\.0\.0\.1:\d+: "):
            Review(run, port=taken.getsockname()[1])


def test_a_notebook_shows_the_link_escaped(run: Run) -> None:
    review = Review(run)
    shown = review._repr_html_()
    assert f'<a href="http://127.0.0.1:{review.port}/open?token=' in shown
    assert 'target="_blank"' in shown
    assert f":{review.port}/open?token=" in repr(review)
    review.stop()


def decide(run: Run, sample: str) -> None:
    log = Log(log_file(run))
    log.decide([Decision(sample, "out")], person="me")
    log.close()


def decided(run: Run) -> list[str]:
    return [*replayed(run).decided()]


def test_decisions_travel(on: Machine) -> None:
    run = on("one")
    with log_in_store(run):
        decide(run, "a")
    run = on("two")
    assert decided(run) == ["a"]
    with log_in_store(run):
        decide(run, "b")
    assert decided(on("one")) == ["a", "b"]


def test_one_review_at_a_time(on: Machine) -> None:
    run = on("one")
    with log_in_store(run):
        other = on("two")
        with pytest.raises(RunError, match="another capro review of this run is open"), log_in_store(other):
            pass
        with other.alone():  # a run may go on meanwhile
            pass


def test_decisions_are_uploaded_while_they_are_made(on: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "UPLOAD_EVERY", 0.02)
    run = on("one")
    with log_in_store(run):
        log = Log(log_file(run))  # open all the time, as the server has it
        for name in "ab":
            log.decide([Decision(name, "out")], person="me")
            deadline = time.monotonic() + 5
            while decided(on("two")) != [*"ab"[: "ab".index(name) + 1]] and time.monotonic() < deadline:
                time.sleep(0.02)
            assert decided(on("two")) == [*"ab"[: "ab".index(name) + 1]]
        log.close()


def test_what_a_killed_review_left_is_uploaded_by_the_next(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    with pytest.raises(Killed), log_in_store(run):  # noqa: PT012 - the block's end raises
        decide(run, "a")
        flaky.faults[:] = [
            Fault(name, kind="kill", times=1000) for name in ("put_file", "rm_file", "pipe_file")
        ]
    flaky.faults.clear()
    assert decided(on("two")) == []
    with log_in_store(on("one")):
        pass
    assert decided(on("two")) == ["a"]


def test_a_review_that_cannot_be_uploaded_says_so(on: Machine, flaky: type[Flaky]) -> None:
    run = on("one")
    with pytest.raises(StoreError, match="sqlite"), log_in_store(run):  # noqa: PT012 - the block's end raises
        decide(run, "a")
        flaky.faults[:] = [Fault("put_file", times=1000)]
    flaky.faults.clear()
    assert decided(on("one")) == ["a"]


def test_a_run_that_goes_on_during_a_review(on: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    working = on("one")
    process = working_copy._copies
    with working.alone():
        run = on("one")  # another process of the same machine
        with log_in_store(run):
            decide(run, "a")
        monkeypatch.setattr(working_copy, "_copies", process)
        working.event("something")  # uploaded at the end of the block
    assert decided(on("one")) == decided(on("two")) == ["a"]


def test_decisions_on_both_sides_are_not_overwritten(on: Machine) -> None:
    decide(on("one"), "a")  # not uploaded
    run = on("two")
    with log_in_store(run):
        decide(run, "b")
    with pytest.raises(RunError, match=r"has decisions that .* lacks") as found:
        on("one")
    assert "move " in found.value.hint


def test_a_class_keeps_its_meaning(on: Machine) -> None:
    session = ReviewSession.__new__(ReviewSession)
    session.run = on("one")
    with pytest.raises(ConfigError, match="cannot be changed here"):
        change_class(session, 0, "", "another", person="me")
