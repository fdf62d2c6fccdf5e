"""The lock of a run in an object store."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

from capro.errors import RunError
from capro.pipeline import locks
from capro.pipeline.locks import StoreLock
from capro.stores import ObjectPath
from tests.stores import Fault, Flaky, flaky

__all__ = ["flaky"]


def lock(copy: str) -> StoreLock:
    file = ObjectPath("flaky", "bucket/run/.lock.json")
    return StoreLock(file, copy, shown="flaky://bucket/run", doing="capro is working in this run")


def held() -> dict[str, object]:
    found: dict[str, object] = json.loads(ObjectPath("flaky", "bucket/run/.lock.json").read_now())
    return found


def test_a_lock_that_is_replaced_by_one_of_another_length_can_be_read(
    flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewing it in the moment between the look at its size and the reading of its bytes was an error."""
    first = lock("a")
    first.take()
    real, replaced = Flaky.cat_file, []

    def cat_file(self: Flaky, path: str, *arguments: object, **options: object) -> object:
        if not replaced:
            replaced.append(path)
            first._file.write_bytes(json.dumps(held_before | {"until": 2e9 + 0.123456}).encode())
        return real(self, path, *arguments, **options)

    held_before = held()
    monkeypatch.setattr(Flaky, "cat_file", cat_file)
    assert held()["until"] == 2e9 + 0.123456


def test_the_second_is_told_who_has_it(flaky: type[Flaky]) -> None:
    first = lock("a")
    first.take()
    with pytest.raises(
        RunError, match=f"on {socket.gethostname()}, process {os.getpid()}, last seen 20"
    ) as found:
        lock("b").take()
    assert "--run" in found.value.hint
    first.release()
    assert "bucket/run/.lock.json" not in [name.strip("/") for name in flaky.store]
    lock("b").take()


def test_the_same_copy_takes_over_from_its_dead_process(flaky: type[Flaky]) -> None:
    lock("a").take()
    second = lock("a")
    second.take()
    second.check()


def test_a_lock_that_nobody_renews_ends(flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LEASE", 0.05)
    first, second = lock("a"), lock("b")
    first.take()
    time.sleep(0.06)
    second.take()
    with pytest.raises(RunError, match=r"the lock was taken by .* nothing more is uploaded"):
        first.check()
    first.release()
    second.check()  # what is another's stays


def test_a_lock_is_renewed_while_its_process_works(
    flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.02)
    first = lock("a")
    first.take()
    before = held()["until"]
    flaky.faults.append(Fault("pipe_file", times=3))
    deadline = time.monotonic() + 5
    while held()["until"] == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held()["until"] != before
    with pytest.raises(RunError):
        lock("b").take()
    first.release()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"{broken", b'{"until": "tomorrow"}'])
def test_a_damaged_lock_counts_for_nothing(flaky: type[Flaky], content: bytes) -> None:
    ObjectPath("flaky", "bucket/run/.lock.json").write_bytes(content)
    lock("a").take()


def test_a_write_that_failed_but_arrived_is_our_own(flaky: type[Flaky]) -> None:
    flaky.faults.append(Fault("info", ".lock", after=1))  # the look after the write
    first = lock("a")
    first.take()
    first.check()


def test_of_two_that_begin_at_once_one_stops(flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lock("a"), lock("b")
    first.take()
    monkeypatch.setattr(StoreLock, "_ended", lambda *_: True)  # both had seen a lock that was over
    second.take()
    monkeypatch.undo()
    with pytest.raises(RunError, match="taken by"):
        first.check()
