"""An object store for tests that fails, hangs, cuts and forgets as it is told. It lives in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from capro import stores
from capro.config import Settings
from capro.pipeline import working_copy
from capro.pipeline.run import Run
from capro.pipeline.working_copy import run_folder
from capro.stores import ObjectPath

Kind = Literal["fail", "deny", "hang", "cut", "forget", "kill"]


class Killed(BaseException):
    """Stands for the end of the process."""


@dataclass
class Fault:
    """What goes wrong: with which request, of which objects, how often, after how many that went well."""

    request: str
    part: str = ""
    kind: Kind = "fail"
    times: int = 1
    after: int = 0

    def happens(self, request: str, path: str) -> bool:
        if request != self.request or self.part not in path or self.times == 0:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class Flaky(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's memory, with faults."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Fault]] = []
    requests: ClassVar[Counter[str]] = Counter()
    sent: ClassVar[list[tuple[str, int]]] = []  # ranges that were read: object and bytes

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.faults.clear()
        cls.requests.clear()
        cls.sent.clear()

    def _fault(self, request: str, path: str) -> Kind | None:
        self.requests[request] += 1
        kind = next((each.kind for each in self.faults if each.happens(request, path)), None)
        if kind == "fail":
            raise ConnectionResetError(104, "https://me:secret@host hung up")
        if kind == "deny":
            raise PermissionError(13, "the token of https://me:secret@host has expired")
        if kind == "kill":
            raise Killed
        if kind == "hang":
            time.sleep(0.5)
        return kind

    def info(self, path: str, **options: Any) -> Any:
        self._fault("info", path)
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._fault("ls", path)
        return super().ls(path, detail=detail, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        kind = self._fault("cat_file", path)
        found = super().cat_file(path, start, end, **options)
        self.sent.append((path, len(found)))
        return found[: len(found) // 2] if kind == "cut" else found

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        kind = self._fault("get_file", rpath)
        found = super().cat_file(rpath)
        Path(lpath).write_bytes(found[: len(found) // 2] if kind == "cut" else found)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._put("put_file", rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._put("pipe_file", path, value, mode=mode)

    def _put(self, request: str, path: str, value: bytes, **options: Any) -> None:
        kind = self._fault(request, path)
        if kind != "forget":
            super().pipe_file(path, value[: len(value) // 2] if kind == "cut" else value, **options)

    def rm_file(self, path: str) -> None:
        self._fault("rm_file", path)
        super().rm_file(path)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Flaky]]:
    """The store behind flaky://, empty."""
    flaky_store(monkeypatch, tmp_path / "cache")
    yield Flaky
    Flaky.reset()


def flaky_store(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Make flaky:// known: requests are repeated at once, and runs are kept in a cache of their own."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setitem(stores.PROTOCOLS, "flaky", None)
    monkeypatch.setattr(stores, "WAITS", (0.001,) * 4)
    monkeypatch.setenv("CAPRO_CACHE", str(cache))
    monkeypatch.setattr(working_copy, "_copies", {})
    Flaky.reset()


RUN = "flaky://bucket/runs/a"
Machine = Callable[[str], Run]


@pytest.fixture
def on(flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """The run at RUN as a new process on a machine of this name sees it."""

    def machine(name: str) -> Run:
        monkeypatch.setenv("CAPRO_CACHE", str(tmp_path / name))
        monkeypatch.setattr(working_copy, "_copies", {})
        return Run.create(run_folder(RUN), Settings())

    return machine


def put_tree(folder: Path, address: str) -> str:
    """Put the files of a folder, or a file, into a store; returns the address."""
    root = ObjectPath(*address.split("://", 1))
    files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    for file in files:
        if file.is_file():
            (root if file == folder else root / file.relative_to(folder).as_posix()).upload(file)
    return address
