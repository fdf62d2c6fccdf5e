"""Runs, tables and models of released versions, kept by scripts/keep_release.py: today's code takes them on."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capro.export.publishing import contents_of
from capro.run.directory import Run
from tests.commands import Capro, capro

__all__ = ["capro"]
KEPT = {path.name.removesuffix(".tar.xz"): path for path in Path(__file__).parent.glob("released/*.tar.xz")}
# the data are at another place now, so they are scanned again; 0.1.0 kept its scores in another form
DONE_AGAIN = {"0.1.0": ["scan", "clean", "finetune", "evaluate"], "0.2.0": ["scan"]}
TABLES = {"single": ["verdicts.parquet"], "multi": ["samples.parquet", "verdicts.parquet"]}


@pytest.fixture(params=[f"{version} {kind}" for version in sorted(KEPT) for kind in TABLES])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A version and one or several labels; the current folder has what was kept of it."""
    version, kind = request.param.split()
    with tarfile.open(KEPT[version]) as archive:
        archive.extractall(
            tmp_path, [each for each in archive if each.name.split("/")[0] == kind], filter="data"
        )
    monkeypatch.chdir(tmp_path / kind)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return version, kind


def test_every_release_is_kept() -> None:
    assert set(KEPT) == set(DONE_AGAIN)
    assert all(path.stat().st_size < 1_000_000 for path in KEPT.values())


def test_a_model_of_a_release_predicts_as_it_did(kept: tuple[str, str], capro: Capro) -> None:
    code, out, err = capro("predict", "model", "data/test/images", "--top", "0", "--format", "jsonl")
    assert code == 0, err
    now = [json.loads(line) for line in out.splitlines()]
    then = [json.loads(line) for line in Path("predicted.jsonl").read_text("utf-8").splitlines()]
    assert [Path(row["image"]).name for row in now] == [Path(row["image"]).name for row in then]
    for new, old in zip(now, then, strict=True):
        assert dict(new["top"]) == pytest.approx(dict(old["top"]), abs=1e-4)
    assert contents_of(Path("model")).kind == "model"


def test_a_run_of_a_release_goes_on(kept: tuple[str, str], capro: Capro) -> None:
    version, kind = kept
    old = Run.open(Path("run"))
    ids = list(old.issues()["id"])
    for command in (["evaluate", "run"], ["report", "run"], ["export", "run", "--out", "before"]):
        code, _, err = capro(*command)
        if version == "0.1.0":  # refused, with the way out
            assert (code, "capro 0.1.0 made it" in err) == (2, True)
            assert "hint: `capro run --run run` does it again" in err
        else:
            assert code == 0, err
    code, _, err = capro("run", "--run", "run")
    assert code == 0, err
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text("utf-8").splitlines()]
    begun = max(
        number for number, row in enumerate(events) if row == {**row, "event": "started", "stage": "scan"}
    )
    done = [row["stage"] for row in events[begun:] if row["event"] == "finished"]
    assert done == DONE_AGAIN[version]
    said = {
        line.split(" is done again: ")[0]: line for line in err.splitlines() if " is done again: " in line
    }
    assert {name for name, line in said.items() if "only if" not in line} == set(done)
    for command in (
        ["evaluate", "run"],
        ["report", "run"],
        ["export", "run", "--out", "after", "--to", "hf"],
    ):
        code, _, err = capro(*command)
        assert code == 0, err
    run = Run.open(Path("run"))
    assert list(run.issues()["id"]) == ids
    for name in TABLES[kind]:
        assert pq.read_schema(run.folder("clean") / name).metadata[b"capro_table"] == b"1"


def test_an_exported_table_of_a_release_is_scanned(kept: tuple[str, str], capro: Capro) -> None:
    code, _, err = capro(
        "scan", "table/samples.parquet", "--image-root", "data/train", "--run", "again", "--json"
    )
    assert code == 0, err
    note = json.loads(Path("table/export.json").read_text("utf-8"))
    assert json.loads(Path("again/scan/summary.json").read_text("utf-8"))["samples"] == note["samples"]
