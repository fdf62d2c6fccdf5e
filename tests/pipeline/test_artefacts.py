"""Files are written whole or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from capro.config import Settings
from capro.pipeline.artefacts import atomic_path, read_array, write_array
from capro.pipeline.run import Run
from capro.pipeline.stage import perform
from tests.pipeline.cases import stage


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_array(tmp_path / "a.npy", np.arange(3))

    def fails() -> None:
        with atomic_path(tmp_path / "a.npy") as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert read_array(tmp_path / "a.npy").tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.parametrize("name", [".a.123.tmp.npy", ".tmpin0ExE"])  # ours, and that of safetensors
def test_what_a_killed_writer_left_goes_with_the_next_start(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path / "r", Settings())
    left = run.folder("x") / name
    left.parent.mkdir()
    left.write_text("half")
    perform(run, stage("x"))
    assert not left.exists()


def test_threads_that_write_the_same_file_do_not_take_each_others_temporary_file(tmp_path: Path) -> None:
    """Two browsers that ask for one picture at once wrote the same temporary file: one answer was an error 500."""
    target, together = tmp_path / "a.txt", threading.Barrier(2, timeout=20)

    def write(text: str) -> None:
        with atomic_path(target) as temporary:
            temporary.write_text(text)
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["one", "two"]))
    assert target.read_text() in {"one", "two"}
    assert [left.name for left in tmp_path.iterdir()] == ["a.txt"]
