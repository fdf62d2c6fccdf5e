"""Requests to object stores: limits, repeats, and what is said when they fail."""

from __future__ import annotations

import builtins
import time
from typing import Any

import pytest

from capro import stores
from capro.errors import ConfigError, StoreError
from capro.stores import ObjectPath, masked
from tests.stores import Fault, Flaky, flaky

__all__ = ["flaky"]
FILE = ObjectPath("flaky", "bucket/a.txt")


@pytest.mark.parametrize("kind", ["fail", "cut"])
def test_an_error_that_passes_is_not_seen(flaky: type[Flaky], kind: Any) -> None:
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
