"""Folders that appear whole, and their names."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.errors import RunError
from capro.export.folders import TEMPORARY, new_folder, safe_name, safe_names
from capro.pipeline.files import DiskError, writing


def _export_for_ever(out: Path) -> None:
    with new_folder(out) as folder:
        (folder / "half").touch()
        time.sleep(60)


def test_what_a_killed_export_left_goes_with_the_next_one_and_a_living_one_stays(tmp_path: Path) -> None:
    """Killed exports left their temporary folder for ever."""
    start = multiprocessing.get_context("fork").Process
    dead, living = (start(target=_export_for_ever, args=(tmp_path / name,)) for name in ("dead", "living"))
    for number, process in enumerate((dead, living), 1):
        process.start()
        until = time.monotonic() + 20
        while len(list(tmp_path.glob(f"{TEMPORARY}*/half"))) < number and time.monotonic() < until:
            time.sleep(0.01)
    assert dead.pid
    os.kill(dead.pid, signal.SIGKILL)
    dead.join()
    (tmp_path / f"{TEMPORARY}file").touch()  # no folder: not ours
    (tmp_path / "precious").mkdir()
    (tmp_path / f"{TEMPORARY}link").symlink_to("precious")
    with new_folder(tmp_path / "out"):
        assert len(list(tmp_path.glob(f"{TEMPORARY}*/half"))) == 1
    living.terminate()
    living.join()
    with new_folder(tmp_path / "other"):
        pass
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"{TEMPORARY}file", f"{TEMPORARY}link", "other", "out", "precious"]


def test_the_folder_one_is_in_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--out .` has no name of its own; and a shell would stay in the folder that was replaced."""
    monkeypatch.chdir(tmp_path)
    for place in (Path(), tmp_path, Path("..", tmp_path.name)):
        with pytest.raises(RunError, match="is the folder you are in"), new_folder(place):
            pass


def test_a_folder_that_somebody_fills_meanwhile_is_not_touched(tmp_path: Path) -> None:
    def race() -> None:
        with new_folder(tmp_path / "out"):
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").touch()

    with pytest.raises(RunError, match="exists already"):
        race()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["theirs"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_bad_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, message in (("file/out", "is a file, not a folder"), ("x" * 300, "the name is too long")):
        with pytest.raises(DiskError, match=message), new_folder(tmp_path / place):
            pass
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_an_error_of_the_disk_names_the_export_and_not_its_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        with new_folder(tmp_path / "out") as folder, writing(folder / "a.png"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskError, match=r"out/a\.png: no space is left") as caught:
        full()
    assert TEMPORARY not in str(caught.value)
    real = Path.mkdir

    def refused(self: Path, *args: object, **more: object) -> None:
        if self.name.startswith(TEMPORARY):
            raise OSError(errno.EROFS, "Read-only file system", str(self))
        real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(DiskError, match=r"out: the disk is mounted read-only"), new_folder(tmp_path / "out"):
        pass


def test_safe_names() -> None:
    hostile = ["", ".", "..", "/", "a/../b", "CON", "x" * 300, "a\0b", "\n", "-rf", "é", "e\u0301"]
    names = safe_names(hostile)
    assert len({name.casefold() for name in names.values()}) == len(hostile)
    for name in names.values():
        assert name
        assert not set(name) & set("/\\\0\n. ")
        assert not name.startswith("-")
        assert len(name.encode()) < 200
    assert safe_name("tiger cat") == "tiger_cat"


def _one_by_one(names: list[str]) -> list[str]:
    """A slow reference: the first number that is free."""
    used: list[str] = []
    for name in names:
        base = safe_name(name)
        tried = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
        used.append(next(each for each in tried if each.casefold() not in {old.casefold() for old in used}))
    return used


@given(
    st.lists(st.sampled_from(["a", "A", "a-2", "A-2", "a/", "/a", "?", "!", "a-3", "unnamed"]), unique=True)
)
def test_names_get_the_first_free_number(names: list[str]) -> None:
    assert [*safe_names(names).values()] == _one_by_one(names)


def test_many_labels_without_letters_take_no_quadratic_time() -> None:
    labels = ["!" * (number % 150 + 1) + "?" * (number // 150 + 1) for number in range(20_000)]
    begin = time.process_time()
    found = safe_names(labels)
    assert time.process_time() - begin < 5  # it was minutes
    assert len(set(found.values())) == 20_000
    assert found[labels[-1]] == "unnamed-20000"
