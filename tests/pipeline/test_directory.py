from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from capro.config import Settings, update
from capro.errors import CaproError, RunError
from capro.pipeline.artefacts import RUN_FORMAT
from capro.pipeline.run import Run
from capro.pipeline.stage import perform
from tests.pipeline.cases import make, stage


def _hold(path: Path) -> None:
    perform(Run.open(path), stage("scan", lambda _: time.sleep(60), held=True))


def test_what_a_kill_left_of_the_settings_goes_when_they_are_written(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Settings())
    left = run.path / ".run.1.2.tmp.yaml"
    left.write_text("seed: ")
    with run.alone():
        run.save_settings()
    assert not left.exists()


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
    assert changed.settings.train.gamma == 0.5
    assert Run.open(run.path).settings == run.settings
    changed.save_settings()
    assert Run.open(run.path).settings == changed.settings


def test_a_run_is_rewritten_only_for_other_settings(tmp_path: Path) -> None:
    run = make(tmp_path, update(Settings(), ["seed=3"]))
    before = (run.path / "run.yaml").stat()
    make(tmp_path, update(Settings(), ["seed=3"]))
    assert (run.path / "run.yaml").stat() == before
    make(tmp_path, update(Settings(), ["seed=4"]))
    assert Run.open(run.path).settings.seed == 4


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


def test_a_run_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path)
    file = run.path / "run.yaml"
    document = yaml.safe_load(file.read_text("utf-8")) | {"capro": "9.0", "layout": RUN_FORMAT.now + 1}
    file.write_text(yaml.safe_dump(document), "utf-8")
    with pytest.raises(
        RunError, match=r"a run directory of version 2 by capro 9\.0, capro \S+ reads 1"
    ) as caught:
        Run.open(run.path)
    assert "install capro 9.0" in caught.value.hint
    assert "--run" in caught.value.hint
    with pytest.raises(RunError, match="of version 2"):
        Run.create(run.path, Settings())
    assert yaml.safe_load(file.read_text("utf-8"))["layout"] == RUN_FORMAT.now + 1  # left as it was


def test_a_run_that_was_killed_at_its_first_run_yaml_goes_on(tmp_path: Path) -> None:
    """It was refused as 'not empty and not a run directory'."""
    for number, name in enumerate(("touch", "write_text", "fsync", "replace", "after")):
        path = tmp_path / str(number)
        process = multiprocessing.get_context("fork").Process(target=_die_at, args=(path, name))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, name
        run = Run.create(path, Settings())
        assert perform(run, stage("scan"))
        assert sorted(file.name for file in path.iterdir()) == [".lock", "events.jsonl", "run.yaml", "scan"]


def _die_at(path: Path, name: str) -> None:
    """Make a run in a process that is killed while it writes run.yaml."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    real = Path.write_text

    def half(self: Path, text: str, *_: object) -> None:
        real(self, text[: len(text) // 2])
        die()

    owners: dict[str, tuple[object, Callable[..., None]]] = {
        "touch": (Path, die), "write_text": (Path, half), "fsync": (os, die), "replace": (os, die),
    }  # fmt: skip
    if name in owners:
        owner, act = owners[name]
        setattr(owner, name, act)
    Run.create(path, Settings())
    die()


def test_files_of_others_are_no_beginning_of_a_run(tmp_path: Path) -> None:
    for name in (".run.tmp.yml", "run.1.2.tmp.yaml", ".other.1.2.tmp.yaml", "notes.txt"):
        path = tmp_path / name
        path.mkdir()
        (path / name).touch()
        with pytest.raises(RunError, match="not empty and not a run directory"):
            Run.create(path, Settings())


def test_a_damaged_run_yaml_has_a_way_out(tmp_path: Path) -> None:
    run = make(tmp_path, update(Settings(), ["seed=3"]))
    perform(run, stage("scan", a=1))
    file = run.path / "run.yaml"
    whole = file.read_text("utf-8")
    for text in (
        "",
        "half: [",
        whole[: len(whole) // 2].rsplit("settings")[0],
        whole[: whole.index("train:")],  # valid, and without the settings of later stages
        whole.replace("seed: 3", "seed: 7"),
        "\0" * 50,
        "[" * 3000,
        "5",
        "settings: 5",
    ):
        file.write_text(text)
        with pytest.raises(CaproError, match=r"run\.yaml") as caught:
            Run.open(run.path)
        assert f"`capro run --data SOURCE --run {run.path}`" in caught.value.hint, text[:20]
        again = Run.create(run.path, run.settings)  # what that command does
        assert not perform(again, stage("scan", a=1))  # what was done stays
        again.save_settings()
        assert Run.open(run.path).settings == run.settings
