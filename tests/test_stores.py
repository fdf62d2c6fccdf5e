"""Object stores: addresses as paths, what is read and written, and requests with limits and repeats."""

from __future__ import annotations

import builtins
import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capro import stores
from capro.config import validate
from capro.errors import ConfigError, StoreError
from capro.stores import ObjectPath, any_path, local_path, masked, state_of
from tests.stores import Fault, Flaky, flaky

__all__ = ["flaky"]


def test_a_path_of_this_machine_stays_one() -> None:
    assert any_path("data/train") == Path("data/train")
    assert any_path(Path("a")) == Path("a")


def test_an_unknown_protocol_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no protocol 'ftp'") as found:
        any_path("ftp://host/data")
    assert "s3://, gs://, memory://" in found.value.hint


@pytest.mark.parametrize("address", ["s3://", "s3:///", "s3://bucket//a", "s3://bucket/../a", "gs://b/./a"])
def test_an_address_without_a_name_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        any_path(address)


def test_credentials_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="user's name or a password") as found:
        any_path("s3://me:hunter2@bucket/data")
    assert "hunter2" not in str(found.value) + found.value.hint
    with pytest.raises(ConfigError, match=r"data\.test") as found:
        validate({"data": {"test": "s3://me:hunter2@bucket/data"}}, place="--set")
    assert "hunter2" not in str(found.value) + found.value.hint


def test_what_must_be_on_this_machine_is_no_address() -> None:
    assert local_path("a.csv", "--truth") == Path("a.csv")
    with pytest.raises(ConfigError, match=r"--truth s3://b/a\.csv"):
        local_path("s3://b/a.csv", "--truth")


def test_an_object_is_looked_at_listed_and_read(flaky: type[Flaky]) -> None:
    folder = any_path("flaky://bucket/data/")
    assert isinstance(folder, ObjectPath)
    assert not folder.exists()
    (folder / "b.txt").write_bytes(b"0123456789")
    (folder / "a" / "c.txt").write_bytes(b"c")
    again = ObjectPath("flaky", "bucket/data")
    assert again.is_dir()
    assert [str(each) for each in again.iterdir()] == ["flaky://bucket/data/a", "flaky://bucket/data/b.txt"]
    assert [each.name for each in again.glob("*.txt")] == ["b.txt"]
    assert [*again.below()] == ["a/c.txt", "b.txt"]
    file = again / "b.txt"
    assert (file.is_file(), file.is_dir(), file.size) == (True, False, 10)
    assert (file.read_range(3, 4), file.read_bytes(most=2), file.read_bytes()) == (
        b"3456",
        b"01",
        b"0123456789",
    )
    with file.open(buffering=4) as opened:
        opened.seek(-3, io.SEEK_END)
        assert opened.read() == b"789"
    with pytest.raises(IsADirectoryError):
        _ = again.size
    with pytest.raises(FileNotFoundError):
        _ = (again / "no").size


def test_a_listing_and_a_look_give_the_same_state(flaky: type[Flaky]) -> None:
    folder = ObjectPath("flaky", "bucket/data")
    (folder / "a.txt").write_bytes(b"one")
    listed, looked = next(folder.iterdir()), folder / "a.txt"
    assert state_of(listed) == state_of(looked) == state_of(folder.below()["a.txt"])
    (folder / "a.txt").write_bytes(b"two")
    assert state_of(folder / "a.txt") != state_of(looked)


def test_a_new_object_replaces_none(flaky: type[Flaky]) -> None:
    lock = ObjectPath("flaky", "bucket/lock")
    lock.write_bytes(b"mine", new=True)
    with pytest.raises(FileExistsError):
        lock.write_bytes(b"yours", new=True)
    assert ObjectPath("flaky", "bucket/lock").read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["fail", "cut", "forget"])
def test_an_upload_is_there_afterwards(flaky: type[Flaky], tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"content")
    flaky.faults.append(Fault("put_file", kind=kind, times=2))  # type: ignore[arg-type]
    found = ObjectPath("flaky", "bucket/a").upload(tmp_path / "a")
    assert found.size == 7
    assert ObjectPath("flaky", "bucket/a").read_bytes() == b"content"
    assert flaky.requests["put_file"] == 3


def test_threads_do_not_wait_for_each_other(flaky: type[Flaky]) -> None:
    ObjectPath("flaky", "bucket/a").write_bytes(b"x")
    flaky.faults.append(Fault("info", kind="hang", times=8))
    begin = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda _: ObjectPath("flaky", "bucket/a").size, range(8))] == [1] * 8
    assert time.monotonic() - begin < 2  # one after the other: 4 s


def test_an_object_that_is_gone_is_removed(flaky: type[Flaky]) -> None:
    ObjectPath("flaky", "bucket/a").remove()


# --- requests -------------------------------------------------------------------------------------

FILE = ObjectPath("flaky", "bucket/a.txt")


@pytest.mark.parametrize("kind", ["fail", "cut"])
def test_a_retryable_error_is_not_seen(flaky: type[Flaky], kind: Any) -> None:
    FILE.write_bytes(b"content")
    flaky.faults.append(Fault("cat_file", kind=kind, times=4))
    assert FILE.read_range(0, 7) == b"content"
    assert flaky.requests["cat_file"] == 5


def test_an_error_that_stays_names_the_address_and_no_password(flaky: type[Flaky]) -> None:
    FILE.write_bytes(b"content")
    flaky.faults.append(Fault("cat_file", times=5))
    with pytest.raises(
        StoreError, match=r"flaky://bucket/a.txt: .*tried 5 times.*\*\*\*@host hung up"
    ) as found:
        FILE.read_range(0, 7)
    assert "secret" not in str(found.value) + found.value.hint
    assert "same command again" in found.value.hint


def test_what_is_denied_is_asked_for_once(flaky: type[Flaky]) -> None:
    FILE.write_bytes(b"content")
    flaky.faults.append(Fault("cat_file", kind="deny", times=5))
    with pytest.raises(StoreError, match="access denied") as found:
        FILE.read_range(0, 7)
    assert flaky.requests["cat_file"] == 1
    assert "secret" not in str(found.value)


def test_that_an_object_is_missing_is_an_answer(flaky: type[Flaky]) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such object: 'flaky://bucket/a\.txt'"):
        FILE.read_range(0, 7)
    assert flaky.requests["cat_file"] == 1


def test_a_store_that_hangs_is_waited_for_no_longer_than_the_limit(
    flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    FILE.write_bytes(b"content")
    monkeypatch.setattr(stores, "LIMIT", 0.02)
    flaky.faults.append(Fault("cat_file", kind="hang", times=5))
    begin = time.monotonic()
    with pytest.raises(StoreError, match="no answer within"):
        FILE.read_range(0, 7)
    assert time.monotonic() - begin < 0.45


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, protocol: str, package: str) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    stores._file_system.cache_clear()
    with pytest.raises(ConfigError, match=f"{protocol}:// needs the package {package}") as found:
        ObjectPath(protocol, "bucket").exists()
    assert found.value.hint == f'pip install "capro[{protocol}]"'


def test_passwords_and_signatures_are_masked() -> None:
    text = "GET https://user:pw@h/x?X-Amz-Credential=AK%2F1&X-Amz-Signature=ff&a=1 and gs://k:v@b"
    assert masked(text) == "GET https://***@h/x?X-Amz-Credential=***&X-Amz-Signature=***&a=1 and gs://***@b"
