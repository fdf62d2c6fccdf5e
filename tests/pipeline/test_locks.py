"""The lock of a run in an object store."""

from __future__ import annotations

import json
import os
import socket

import pytest

from capro.errors import RunError
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
    """Replacing it in the moment between the look at its size and the reading of its bytes was an error."""
    first = lock("a")
    first.take()
    real, replaced = Flaky.cat_file, []

    def cat_file(self: Flaky, path: str, *arguments: object, **options: object) -> object:
        if not replaced:
            replaced.append(path)
            first._file.write_bytes(json.dumps(held_before | {"time": 2e9 + 0.123456}).encode())
        return real(self, path, *arguments, **options)

    held_before = held()
    monkeypatch.setattr(Flaky, "cat_file", cat_file)
    assert held()["time"] == 2e9 + 0.123456


def test_the_second_is_told_who_has_it(flaky: type[Flaky]) -> None:
    first = lock("a")
    first.take()
    with pytest.raises(
        RunError, match=f"on {socket.gethostname()}, process {os.getpid()}, since 20"
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


def test_a_lock_that_was_deleted_by_hand_and_taken_by_another(flaky: type[Flaky]) -> None:
    first, second = lock("a"), lock("b")
    first.take()
    ObjectPath("flaky", "bucket/run/.lock.json").remove()
    second.take()
    with pytest.raises(RunError, match=r"the lock was taken by .* nothing more is uploaded"):
        first.check()
    first.release()
    second.check()  # what is another's stays


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"{broken", b'{"copy": "b"}'])
def test_a_damaged_lock_counts_for_nothing(flaky: type[Flaky], content: bytes) -> None:
    ObjectPath("flaky", "bucket/run/.lock.json").write_bytes(content)
    lock("a").take()


def test_a_write_that_failed_but_arrived_is_our_own(flaky: type[Flaky]) -> None:
    flaky.faults.append(Fault("info", ".lock", after=1))  # the look after the write
    first = lock("a")
    first.take()
    first.check()


def test_of_two_that_begin_at_once_one_stops(flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store without conditional create: the second has seen no lock, and writes over the first."""
    first, second = lock("a"), lock("b")
    first.take()
    read, write = StoreLock._read, ObjectPath.write_bytes
    looks = iter([None])
    monkeypatch.setattr(StoreLock, "_read", lambda self: next(looks, read(self)))
    monkeypatch.setattr(ObjectPath, "write_bytes", lambda self, data, new=False: write(self, data))
    second.take()
    monkeypatch.undo()
    with pytest.raises(RunError, match="taken by"):
        first.check()
