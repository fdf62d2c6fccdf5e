"""Stages are skipped, redone and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capro.errors import RunError
from capro.pipeline.stage import Job, Stage, perform
from tests.pipeline.cases import make, stage


def test_a_stage_is_skipped_when_fresh_and_redone_when_settings_change(tmp_path: Path) -> None:
    run, done = make(tmp_path), []

    def scan(value: int) -> Stage:
        return stage("scan", lambda job: done.append(job.folder.name) or {"n": 1}, a=value)

    assert perform(run, scan(1))
    assert not perform(run, scan(1))
    assert perform(run, scan(2))
    assert perform(run, scan(2), force=True)
    assert done == ["scan"] * 3
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("skipped") == 1
    assert run.finished("scan")["result"] == {"n": 1}  # type: ignore[index]


def test_what_a_stage_needed_to_go_on_is_gone_when_it_has_finished(tmp_path: Path) -> None:
    run = make(tmp_path)

    def work(job: Job) -> None:
        (job.folder / "checkpoints" / "1").mkdir(parents=True)
        (job.folder / "not-finite.json").touch()
        (job.folder / "result.txt").touch()

    for value in (1, 2):  # the second in a folder beside the first
        perform(run, stage("train", work, a=value))
        assert {path.name for path in run.folder("train").iterdir()} == {"result.txt", "stage.json"}
    (run.folder("train") / "checkpoints").mkdir()  # killed after stage.json was written
    assert not perform(run, stage("train", work, a=2))
    assert not (run.folder("train") / "checkpoints").exists()


def test_a_stage_goes_stale_with_its_input(tmp_path: Path) -> None:
    run = make(tmp_path)
    embed = stage("embed", reads=["scan"])
    perform(run, stage("scan", a=1))
    assert perform(run, embed)
    assert embed.is_fresh(run)
    assert not perform(run, embed)
    perform(run, stage("scan", a=2))
    assert not embed.is_fresh(run)
    assert perform(run, embed)


def test_a_missing_input_is_an_error(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(RunError, match="the scan stage has not finished") as caught:
        perform(run, stage("embed", reads=["scan"]))
    assert f"`capro run --run {run.path}`" in caught.value.hint


def test_an_interrupted_stage_is_not_finished(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        perform(run, stage("scan", _interrupted))
    assert run.finished("scan") is None
    assert perform(run, stage("scan"))


def _interrupted(job: Job) -> None:
    (job.folder / "half").write_text("new")
    raise KeyboardInterrupt


def _writes(text: str, *, keep: bool = False, **settings: Any) -> Stage:
    def work(job: Job) -> None:
        (job.folder / "whole").write_text(text)

    return replace(stage("clean", work, **settings), keep=keep)


def test_a_finished_stage_stays_until_it_has_been_done_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    perform(run, _writes("old", a=1))
    with pytest.raises(KeyboardInterrupt):
        perform(run, stage("clean", _interrupted, a=2))
    assert _writes("old", a=1).is_fresh(run)
    assert [path.name for path in run.folder("clean").iterdir() if path.name != "stage.json"] == ["whole"]
    # what the interrupted work has left is there for the next attempt
    assert perform(run, stage("clean", lambda job: {"half": (job.folder / "half").read_text()}, a=2))
    assert run.result("clean") == {"half": "new"}
    assert not (run.folder("clean") / "whole").exists()


def test_a_result_that_is_replaced_is_kept_under_a_number(tmp_path: Path) -> None:
    run = make(tmp_path)
    for number, text in enumerate(("first", "second", "third")):
        perform(run, _writes(text, keep=True, a=number))
    found = {path.parent.name: path.read_text() for path in run.path.glob("clean*/whole")}
    assert found == {"clean.1": "first", "clean.2": "second", "clean": "third"}


def test_killed_while_the_new_result_takes_the_old_one_s_place(tmp_path: Path) -> None:
    run = make(tmp_path)
    perform(run, _writes("old", a=1))
    perform(run, _writes("new", a=2))
    (run.path / ".redo").mkdir(exist_ok=True)
    run.folder("clean").rename(run.path / ".redo" / "clean")  # as between the two renames
    assert not perform(run, _writes("never", a=2))
    assert (run.folder("clean") / "whole").read_text() == "new"
