"""A file that is not what its stage wrote is never read, and there is a way out."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from capro.errors import RunError
from capro.pipeline import checksums
from capro.pipeline.artefacts import (
    ADJACENCY,
    ANCHORS,
    CLEANED_LABELS,
    FINISHED,
    STEP3,
    SUMMARY,
    Artefact,
    write_array,
)
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.pipeline.stage import Stage, perform
from tests.pipeline.cases import make, stage

LABELS = Artefact("clean", CLEANED_LABELS.file, write_array, CLEANED_LABELS.load)


def _clean(keep: bool = False) -> Stage:
    return Stage("clean", lambda job: job.write(LABELS, np.arange(5)), keep=keep)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = make(tmp_path)
    perform(made, _clean())
    return made


def _flip(file: Path, *, quietly: bool = False, at: int = -1) -> None:
    """Change one bit; quietly as a failing disk does it, with the time of the file as it was."""
    before, data = file.stat(), bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    if quietly:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def _empty(file: Path) -> None:
    """Point 16: numpy's EOFError of an empty labels.npy was reported as 'interrupted'."""
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [_flip, _cut, _empty, Path.unlink])
def test_a_damaged_file_is_refused_and_a_run_makes_it_again(run: Run, harm: Callable[[Path], None]) -> None:
    file, whole = run.file(LABELS), run.file(LABELS).read_bytes()
    harm(file)
    for read in (run.read, run.find):
        with pytest.raises(
            RunError, match=r"clean/labels\.npy: (damaged|gone) since the clean stage"
        ) as caught:
            read(LABELS)
        assert caught.value.hint == f"`capro run --run {run.path}` does the clean stage again"
    assert perform(run, _clean(keep=True))
    assert file.read_bytes() == whole
    assert not (run.path / "clean.1").exists()  # a damaged result is not worth keeping
    assert not perform(run, _clean())


def test_a_bit_that_flipped_on_the_disk_is_found_where_the_file_leaves_the_run(run: Run) -> None:
    file = run.file(LABELS)
    _flip(file, quietly=True)
    assert run.read(LABELS)[-1] != 4  # size and time are the same: not looked at
    with pytest.raises(RunError, match=r"labels\.npy: damaged") as caught:
        run.thoroughly().read(LABELS)
    command = caught.value.hint.split("`")[1]
    assert command == f"rm {run.path / 'clean' / FINISHED}"
    Path(command.removeprefix("rm ")).unlink()
    assert perform(run, _clean())  # the hint works
    assert run.thoroughly().read(LABELS).tolist() == [0, 1, 2, 3, 4]


def test_a_copied_run_is_hashed_once_and_an_untouched_one_never(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = list[str]()
    real = checksums.sha256_of

    def counted(file: str) -> str:
        hashed.append(file)
        return real(file)

    monkeypatch.setattr(checksums, "sha256_of", counted)
    for _ in range(3):
        run.read(LABELS)
        assert not perform(run, _clean())
    assert hashed == []
    os.utime(run.file(LABELS))
    for _ in range(3):
        assert run.read(LABELS)[-1] == 4
        assert not perform(run, _clean())
    assert hashed == [str(run.file(LABELS))]


def test_only_the_damaged_stage_is_done_again(run: Run) -> None:
    behind = stage("finetune", reads=["clean"])
    perform(run, behind)
    _flip(run.file(LABELS))
    found = {each.stage: (each.state, each.why) for each in Plan([_clean(), behind]).look(run, "finetune")}
    assert found == {"clean": ("stale", f"{run.file(LABELS)} is damaged"), "finetune": ("fresh", "")}
    perform(run, _clean())
    assert not perform(run, behind)


def test_a_damaged_stage_json_has_a_way_out(run: Run) -> None:
    """It failed every command until it was deleted by hand."""
    file = run.folder("clean") / FINISHED
    whole = file.read_bytes()
    rng = random.Random(0)
    for number in range(400):
        data = bytearray(whole)
        if number % 4 == 0:
            data = data[: rng.randrange(len(data))]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        found = run.finished("clean")
        assert found is None or found == json.loads(whole), bytes(data)
    file.write_text("{}")
    for read in (
        lambda: run.read(LABELS),
        lambda: run.find(LABELS),
        lambda: run.identity("clean"),
        lambda: run.result("clean"),
    ):
        with pytest.raises(RunError, match=r"clean/stage\.json: damaged") as caught:
            read()
        assert caught.value.hint == f"`capro run --run {run.path}` does the clean stage again"
    assert perform(run, _clean())
    assert run.read(LABELS).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"fingerprint": 5}', '{"fingerprint": "x"}', "\0" * 40, "[" * 9999]
)
def test_no_stage_json_is_too_strange(run: Run, text: str) -> None:
    (run.folder("clean") / FINISHED).write_text(text)
    assert run.finished("clean") is None


VALUES = {
    ANCHORS: pd.DataFrame({"row": [1, 2]}),
    STEP3: {"w": torch.ones(3)},
    SUMMARY: {"rows": 2},
    CLEANED_LABELS: np.arange(4),
}


@pytest.mark.parametrize("artefact", VALUES, ids=lambda artefact: artefact.file)
def test_files_that_a_failing_disk_changed_are_called_damaged_by_their_reader(
    tmp_path: Path, artefact: Artefact[object]
) -> None:
    """Size and time are the same, so no checksum is compared: it was called a bug in capro."""
    run = make(tmp_path)
    perform(run, Stage(artefact.stage, lambda job: job.write(artefact, VALUES[artefact])))
    file = run.file(artefact)
    size, time = file.stat().st_size, file.stat().st_mtime_ns
    for data in (b"\0" * size, b"\xff" * size):
        file.write_bytes(data)
        os.utime(file, ns=(time, time))
        with pytest.raises(RunError, match=f"{artefact.file}: damaged since") as caught:
            run.read(artefact)
        assert caught.value.hint.startswith(f"`rm {run.folder(artefact.stage) / FINISHED}`, then `capro run")


def test_a_graph_is_read_with_three_reads_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 4: each access of an NpzFile reads the array anew; one per row made `clean` quadratic."""
    from numpy.lib.npyio import NpzFile
    from scipy.sparse import csr_array

    from capro.results.neighbourhood import text_lenders

    n = 500
    rows = np.arange(n)
    graph = csr_array((np.ones(n, np.float32), (rows, (rows + 1) % n)), shape=(n, n))
    run = make(tmp_path)
    perform(run, Stage(ADJACENCY.stage, lambda job: job.write(ADJACENCY, graph)))
    reads = list[str]()
    real = NpzFile.__getitem__

    def counted(self: NpzFile, name: str) -> object:
        reads.append(name)
        return real(self, name)

    monkeypatch.setattr(NpzFile, "__getitem__", counted)
    found = text_lenders(run.find(ADJACENCY), np.ones(n, dtype=bool))
    assert [int(row[0]) for row in found] == ((rows + 1) % n).tolist()
    assert sorted(reads) == ["data", "indices", "indptr"]
