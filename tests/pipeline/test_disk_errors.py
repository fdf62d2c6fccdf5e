"""Errors of the disk name the file and the way out; no other error is taken for one."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from scipy.sparse import csr_array

from capro.errors import ConfigError
from capro.graph.ondisk import Budget
from capro.pipeline.artefacts import (
    atomic_path,
    write_array,
    write_graph,
    write_json,
    write_table,
    write_text,
    write_weights,
)
from capro.pipeline.files import MEANINGS, DiskError, explained, writing
from capro.pipeline.run import Run
from capro.pipeline.shards import write_rows
from capro.pipeline.stage import Stage, perform
from tests.pipeline.cases import make, stage

LARGE = np.random.default_rng(0).random((200, 100), np.float32)
WRITERS: dict[str, Callable[[Path], None]] = {
    "array": lambda path: write_array(path.with_suffix(".npy"), LARGE),
    "rows": lambda path: write_rows(path, LARGE.shape, [LARGE]),
    "table": lambda path: write_table(path, pd.DataFrame(LARGE, columns=[str(n) for n in range(100)])),
    "weights": lambda path: write_weights(path, {"w": torch.from_numpy(LARGE)}),
    "graph": lambda path: write_graph(path.with_suffix(".npz"), csr_array(LARGE)),
    "text": lambda path: write_text(path, "x" * LARGE.nbytes),
}


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may be larger than 20 KB: a real error from each library, as a full disk gives one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_takes_no_more_is_named_and_nothing_is_left(
    tmp_path: Path, small_disk: None, writer: str
) -> None:
    """A full disk was called a bug in capro."""
    with pytest.raises(
        DiskError, match=r"result(\.np[yz])?: (the file is too large|no space is left)"
    ) as caught:
        WRITERS[writer](tmp_path / "result")
    assert "--run or --out" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_what_is_needed_and_what_is_free(tmp_path: Path) -> None:
    def full() -> None:
        with atomic_path(tmp_path / "a.npy", needed=5 * 2**30):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskError, match=r"a\.npy: no space is left on the disk \(5\.0 GB needed, .* free\)"):
        full()


def test_a_mapped_scratch_file_takes_its_space_at_once(tmp_path: Path, small_disk: None) -> None:
    """Writing to a mapped file of a full disk ends the process with SIGBUS."""
    with pytest.raises(DiskError, match=r"scratch\.npy"):
        Budget(64 << 20, tmp_path).array("scratch", (1024, 1024, 4))


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EROFS, "x"), True),
        (PermissionError(errno.EACCES, "x"), True),
        (OSError("400 requested and 12 written"), True),
        (OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"), True),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (OSError(errno.EINVAL, "x"), False),
        (FileNotFoundError(errno.ENOENT, "x"), False),
        (ConnectionError("reset"), False),
        (ValueError("errno 28"), False),
        (SafetensorError("header too large"), False),
        (ConfigError("os error 28"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_an_error_that_is_none_of_the_disk_stays_what_it_is(error: BaseException, known: bool) -> None:
    assert (explained(error, Path("a")) is not None) == known

    def fails() -> None:
        with writing(Path("a")):
            raise error

    with pytest.raises(DiskError if known else type(error)):
        fails()


def test_every_meaning_is_a_sentence_with_an_action() -> None:
    for number in MEANINGS:
        found = explained(OSError(number, os.strerror(number), "/data/x"))
        assert found is not None
        assert str(found).startswith("/data/x: ")
        assert found.hint


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("file/run", "a part of the path is a file"),
        ("x" * 300, "the name is too long"),
        ("loop/run", "symbolic links form a loop"),
    ],
)
def test_a_run_in_a_bad_place_is_named(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    from capro.config import Settings

    with pytest.raises((DiskError, OSError)) as caught:
        Run.create(tmp_path / place, Settings())
    found = caught.value if isinstance(caught.value, DiskError) else explained(caught.value)
    assert message in str(found)


def test_a_stage_that_the_disk_stops_is_not_finished_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills at each sync of a stage: no partial artefact, and the same command goes on."""
    run = make(tmp_path)

    def work(job) -> None:  # type: ignore[no-untyped-def]
        write_json(job.folder / "a.json", 1)
        write_json(job.folder / "b.json", 2)

    perform(run, stage("x"))
    left = 0

    def fsync(_: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    stopped = 0
    for number in range(40):
        left = number
        try:
            perform(run, Stage("x", work, settings=lambda _: {"again": 1}))
        except DiskError:
            stopped += 1
            assert not list(run.path.rglob("*.tmp*"))
        else:
            break
    assert stopped > 5
    left = 1000
    assert not perform(run, Stage("x", work, settings=lambda _: {"again": 1}))
    assert sorted(file.name for file in run.folder("x").iterdir()) == ["a.json", "b.json", "stage.json"]


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    for name in ("x" * 250 + ".csv", "\N{CAT FACE}" * 60 + ".csv"):
        write_text(tmp_path / name, "a")
        assert (tmp_path / name).read_text() == "a"


def test_a_folder_in_the_place_of_a_file_is_named_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="is a folder, but a file is needed here"), atomic_path(tmp_path):
        raise AssertionError
