from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from capro.cli import app
from capro.config import Settings, update
from capro.errors import RunError
from capro.run.artefacts import atomic_path, read_array, write_array
from capro.run.directory import LAYOUT, Run
from capro.run.fingerprints import fingerprint, seed_for
from capro.run.stage import Job, Stage, perform
from capro.stages import PLAN

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_fingerprint_ignores_key_order_only(value: object) -> None:
    again = json.loads(json.dumps(value))
    assert fingerprint(value) == fingerprint(again)
    assert fingerprint([value]) != fingerprint([value, 0])


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


def stage(
    name: str, work: Callable[[Job], Any] = lambda _: None, *, reads: Sequence[str] = (), **settings: Any
) -> Stage:
    return Stage(name, work, settings=lambda _: settings, reads=reads)


def make(tmp_path: Path, settings: Settings | None = None) -> Run:
    return Run.create(tmp_path / "run", settings or Settings())


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
    with pytest.raises(RunError, match="the scan stage has not finished") as caught:
        PLAN.do(run, "embed")
    assert f"`capro run --run {run.path}`" in caught.value.hint  # what can be typed as it stands


@pytest.mark.parametrize("name", PLAN.names)
def test_the_hint_names_a_command_that_exists(tmp_path: Path, name: str) -> None:
    command = PLAN.command(name, tmp_path).removeprefix("capro ").split(" --run")[0].split()
    names = {each.name or each.callback.__name__ for each in app.registered_commands}
    groups = {each.name for each in app.registered_groups}
    assert command[0] in names | groups


def test_an_interrupted_stage_is_not_finished(tmp_path: Path) -> None:
    run = make(tmp_path)
    perform(run, stage("scan"))

    def interrupted(_: Job) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(run, stage("scan", interrupted), force=True)
    assert run.finished("scan") is None
    assert perform(run, stage("scan"))


def _hold(path: Path) -> None:
    perform(Run.open(path), stage("scan", lambda _: time.sleep(60), held=True))


def test_two_processes_do_not_share_a_run_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    run = make(tmp_path)
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(run.path,))
    holder.start()
    events = run.path / "events.jsonl"
    for _ in range(300):
        if events.exists() and "started" in events.read_text():
            break
        time.sleep(0.1)
    with pytest.raises(RunError, match="another capro is working"):
        perform(run, stage("scan"))
    assert holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert perform(run, stage("scan"))


def test_run_yaml_holds_the_settings(tmp_path: Path) -> None:
    run = make(tmp_path, update(Settings(), ["train.gamma=0.4", "seed=3"]))
    opened = Run.open(run.path)
    assert opened.settings == run.settings
    changed = opened.with_settings(update(opened.settings, ["train.gamma=0.5"]))
    assert Run.open(run.path).settings.train.gamma == changed.settings.train.gamma == 0.5


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run.yaml"):
        Run.open(tmp_path)
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(RunError, match="not empty and not a run directory"):
        Run.create(tmp_path, Settings())
    with pytest.raises(RunError, match="is a file"):
        Run.create(tmp_path / "photo.jpg", Settings())
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.yaml").write_text("half: [")
    with pytest.raises(RunError, match="damaged"):
        Run.open(tmp_path / "d")


def test_a_run_of_version_0_1_0_opens_and_goes_on(tmp_path: Path) -> None:
    run = make(tmp_path, update(Settings(), ["seed=3"]))
    perform(run, stage("scan", a=1))
    file = run.path / "run.yaml"
    document = yaml.safe_load(file.read_text("utf-8"))
    del document["layout"]  # version 0.1.0 wrote no number, and the same files
    file.write_text(yaml.safe_dump(document | {"capro": "0.1.0"}, sort_keys=False), "utf-8")
    opened = Run.open(run.path)
    assert opened.settings == run.settings
    assert not perform(opened, stage("scan", a=1))  # fresh
    assert perform(opened, stage("embed", reads=["scan"]))
    opened.with_settings(update(opened.settings, ["seed=4"]))
    assert yaml.safe_load(file.read_text("utf-8"))["layout"] == LAYOUT


def test_a_run_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path)
    file = run.path / "run.yaml"
    document = yaml.safe_load(file.read_text("utf-8")) | {"capro": "9.0", "layout": LAYOUT + 1}
    file.write_text(yaml.safe_dump(document), "utf-8")
    with pytest.raises(RunError, match=r"made by capro 9\.0, whose runs this version cannot read") as caught:
        Run.open(run.path)
    assert "install that version" in caught.value.hint
    assert "--run" in caught.value.hint
    with pytest.raises(RunError, match="cannot read"):
        Run.create(run.path, Settings())
    assert yaml.safe_load(file.read_text("utf-8"))["layout"] == LAYOUT + 1  # left as it was


def test_seeds_differ_by_purpose() -> None:
    seeds = {seed_for(seed, name) for seed in range(20) for name in ("match", "train", "views")}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_what_a_killed_writer_left_goes_with_the_next_start(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", Settings())
    left = run.folder("x") / ".a.123.tmp.npy"
    left.parent.mkdir()
    left.write_text("half")
    perform(run, stage("x"))
    assert not left.exists()
