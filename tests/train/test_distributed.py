"""Two ranks as real processes give what one rank gives on the same global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from capro.export.dataset import export_data
from capro.pipeline.run import Run
from tests import tiny
from tests.train.toys import Toy
from tests.train.two_ranks import TOYS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    """Two processes under torchrun."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
    ]  # fmt: skip
    return subprocess.run(
        [*launcher, *command], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    done = launch(str(Path(__file__).with_name("two_ranks.py")), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def history(path: Path) -> list[dict[str, float]]:
    return json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("name", TOYS)
def test_two_ranks_equal_one(folder, name):
    one = TOYS[name].trained()
    for rank in (0, 1):
        path = folder / f"{name}{rank}.safetensors"
        two = load_file(path)
        for row, expected in zip(history(path), one["history"], strict=True):
            assert row == pytest.approx(expected, abs=1e-4)
        assert torch.allclose(two["objective.prototypes"], one["objective.prototypes"], atol=1e-4)
        assert torch.equal(two["objective.pseudo"], one["objective.pseudo"])
        # keys of the whole batch are enqueued, in the batch's order
        key = "objective.dictionary.store"
        assert torch.allclose(two[key], one[key], atol=1e-4)
        for each, value in two.items():
            assert torch.allclose(value.float(), one[each].float(), atol=1e-4), each
    if "drop" in one["history"][-1] and name == "features":
        assert one["history"][-1]["relabel"] > 0


def test_both_ranks_hold_the_same_state(folder):
    """Also where BatchNorm saw other samples on each: prototypes, weights, labels, dictionary."""
    for name in (*TOYS, "statistics", "resumed"):
        zero, one = (load_file(folder / f"{name}{rank}.safetensors") for rank in (0, 1))
        for each in zero:
            if "running_" not in each:
                assert torch.equal(zero[each], one[each]), (name, each)


def test_a_resumed_pair_ends_as_if_it_never_stopped(folder):
    for rank in (0, 1):
        whole, again = (folder / f"{name}{rank}.safetensors" for name in ("features", "resumed"))
        assert whole.read_bytes() == again.read_bytes()
        assert history(whole) == history(again)


def test_one_rank_writes_and_uneven_rows_are_gathered(folder):
    zero, one = (json.loads((folder / f"told{rank}.json").read_text()) for rank in (0, 1))
    assert zero["ranks"] == one["ranks"] == 2
    assert len(zero["files"]) == 2
    assert one["files"] == []
    assert zero["gathered"] == one["gathered"] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert zero["error"] == one["error"]
    assert "a batch of 1 samples cannot be shared by 2 ranks" in zero["error"]


def test_one_rank_does_not_mind_tiny_batches():
    assert len(Toy(n=1, classes=1).trained()["history"]) == 3


def test_the_whole_pipeline_runs_under_two_ranks(tmp_path):
    """From the command line: one manifest, one set of events, one JSON on stdout."""
    data = tiny.write_data(tmp_path / "data")
    path = tmp_path / "run"
    options = ["--data", str(data), "--run", str(path), "--json"]
    for override in (*tiny.FAST, "net.mode=frozen", f"data.classes={data / 'classes.yaml'}"):
        options += ["--set", override]
    done = launch("-m", "--", "capro", "run", *options)  # `--run` is short for an option of torchrun
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert set(found) == {"vanilla", "capro"}
    assert done.stderr.count("[1/") == 1  # one rank talks
    assert done.stderr.count("encoder small: ") == 1
    run = Run.open(path)
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    finished = [event["stage"] for event in events if event["event"] == "finished"]
    assert finished == [
        "scan", "classes", "pixels", "features", "pretrain", "embed", "graph", "match",
        "posterior", "clean", "finetune", "evaluate",
    ]  # fmt: skip
    assert len(pd.read_parquet(run.folder("clean") / "verdicts.parquet")) == 27
    assert not list(path.rglob("checkpoints"))
    assert not list(path.rglob("*.tmp*"))
    exported(run, tmp_path)


def exported(run: Run, folder: Path) -> None:
    """Ranks write the export that one process writes; one of them says so."""
    one, two = folder / "one", folder / "two"
    export_data(run, one, to="webdataset")
    done = launch("-m", "--", "capro", "export", str(run.path), "--to", "webdataset", "--out", str(two))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("samples in") == 1
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(two)) for path in two.rglob("*") if path.is_file())
    assert any(name.endswith(".tar") for name in names)
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
