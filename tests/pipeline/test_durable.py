"""After a power cut at any moment a run goes on to the same bytes, and what appears is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from capro.config import Settings
from capro.export.folders import new_folder
from capro.pipeline import files as durable
from capro.pipeline.artefacts import Artefact, atomic_path, read_array, write_array, write_json, write_table
from capro.pipeline.run import Run
from capro.pipeline.shards import planned, sharded, write_rows
from capro.pipeline.stage import Job, Stage, perform
from capro.train.checkpoints import Checkpoints
from tests.pipeline.power import ForgetfulDisk, Survives

NUMBERS = Artefact("embed", "numbers.npy", write_array, read_array)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgetfulDisk]:
    (tmp_path / "disk").mkdir()
    made = ForgetfulDisk(tmp_path / "disk", monkeypatch)
    yield made
    made.close()


def _scan(job: Job) -> dict[str, str]:
    write_table(job.folder / "manifest.parquet", pd.DataFrame({"id": ["a", "b"]}))
    write_json(job.folder / "summary.json", {"rows": 2})
    return {"content": "abc"}


def _embed(job: Job) -> None:
    shards = planned(job.folder / "parts", 6, key="k", size=2)
    sharded(shards, lambda begin, end, _: np.full((end - begin, 3), begin, np.float32))
    write_rows(job.file(NUMBERS), (6, 3), shards.blocks())


def _clean(gamma: float) -> Stage:
    def work(job: Job) -> dict[str, float]:
        write_array(job.folder / "labels.npy", job.run.read(NUMBERS)[:, 0] * gamma)
        return {"gamma": gamma}

    return Stage("clean", work, settings=lambda _: {"gamma": gamma}, reads=["embed"], keep=True)


def _go(path: Path) -> None:
    """A run; its last stage is done again with another setting."""
    run = Run.create(path, Settings())
    perform(run, Stage("scan", _scan))
    perform(run, Stage("embed", _embed, reads=["scan"]))
    if not run.finished("clean"):
        perform(run, _clean(0.5))
    perform(run, _clean(0.4))


def _bytes(path: Path) -> dict[str, bytes]:
    """The artefacts of the stages."""
    files = [file for name in ("scan", "embed", "clean") for file in (path / name).rglob("*")]
    kept = [file for file in files if file.is_file() and file.name != "stage.json"]
    return {str(file.relative_to(path)): file.read_bytes() for file in kept}


@pytest.mark.parametrize("survives", get_args(Survives))
def test_a_run_goes_on_after_a_power_cut_at_every_sync(
    disk: ForgetfulDisk, survives: Survives, tmp_path: Path
) -> None:
    _go(disk.root / "run")
    whole, syncs = _bytes(disk.root / "run"), len(disk.moments)
    assert syncs > 40
    found = list(disk.after_cuts(tmp_path / "left", survives))
    assert len(found) > 20
    for left in found:
        _go(left / "run")
        assert _bytes(left / "run") == whole, left
    last = list((found[-1] / "run").iterdir())
    assert "clean.1" in [file.name for file in last]  # the replaced verdicts survive the cut as well


def test_what_is_not_synced_is_lost(disk: ForgetfulDisk, tmp_path: Path) -> None:
    """The fake disk itself: a file that is only written or renamed does not survive."""
    (disk.root / "a").write_text("not synced")
    with atomic_path(disk.root / "b") as temporary:
        temporary.write_text("synced")
    (disk.root / "b").rename(disk.root / "c")
    durable.sync(disk.root / "c")
    *_, last = disk.after_cuts(tmp_path / "left", "synced")
    assert {file.name: file.read_text() for file in last.iterdir()} == {"a": "", "b": "synced"}


@pytest.mark.parametrize("survives", get_args(Survives))
@pytest.mark.parametrize("many", [1000, 2])
def test_an_export_is_whole_or_absent_after_a_power_cut(
    disk: ForgetfulDisk, survives: Survives, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "MANY", many)  # above it one call syncs all
    with new_folder(disk.root / "a" / "out") as folder:
        (folder / "images").mkdir()
        for number in range(4):
            (folder / "images" / f"{number}.png").write_bytes(b"picture")
        (folder / "samples.csv").write_text("file_name\n")
    states = []
    for left in disk.after_cuts(tmp_path / "left", survives):
        out = left / "a" / "out"
        states.append(out.exists())
        if out.exists():
            assert [file.read_bytes() for file in sorted((out / "images").iterdir())] == [b"picture"] * 4
            assert (out / "samples.csv").read_text() == "file_name\n"
    assert states[-1]  # the export had returned


@pytest.mark.parametrize("survives", get_args(Survives))
def test_a_checkpoint_is_whole_or_passed_over_after_a_power_cut(
    disk: ForgetfulDisk, survives: Survives, tmp_path: Path
) -> None:
    kept = Checkpoints(disk.root / "checkpoints", "key")
    for step in (1, 2, 3, 3):
        kept.save(step, {"w": torch.full((4,), float(step))}, {"step": step})
    steps = []
    for left in disk.after_cuts(tmp_path / "left", survives):
        found = Checkpoints(left / "checkpoints", "key").latest()
        steps.append(0 if found is None else found[1]["step"])
        if found is not None:
            assert found[0]["w"].tolist() == [float(steps[-1])] * 4
    # a step that is saved again goes away for a moment: the one before it is there
    assert all(later >= earlier - 1 for earlier, later in pairwise(steps))
    assert steps[-1] == 3


def test_syncing_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    monkeypatch.setattr(os, "fsync", calls.append)
    write_json(tmp_path / "a.json", 1)
    assert len(calls) == 2  # the file, and the folder that names it
    with atomic_path(tmp_path / "thumbnail", cache=True):
        pass
    assert len(calls) == 2
    for word in ("0", "no", " OFF "):
        monkeypatch.setenv("CAPRO_FSYNC", word)
        write_json(tmp_path / "b" / "c.json", 1)
    assert len(calls) == 2
    for word in ("", "1", "yes"):
        monkeypatch.setenv("CAPRO_FSYNC", word)
        assert durable.wanted()


def test_a_folder_that_cannot_be_synced_is_no_error_and_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(_: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unable)
    durable.sync(tmp_path)
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="Invalid"):
        durable.sync(tmp_path / "a")
