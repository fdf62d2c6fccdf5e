"""The command line as a user meets it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from typer.main import get_command

from capro import config, stages
from capro.cli import app, main, program
from capro.data.manifest import manifest_of
from capro.errors import DataError, RankError
from capro.pipeline.run import Run
from capro.stages import PLAN
from tests.data.corpus import png

CAPRO = [sys.executable, "-m", "capro"]


def capro(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*CAPRO, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in range(6):
        path = tmp_path / "data" / ("cat", "dog")[seed % 2] / f"{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed))
    return tmp_path / "data"


@pytest.mark.parametrize("words", [[], ["--help"], ["scan", "--help"], ["run", "--help"]])
def test_help_imports_no_heavy_package(words: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['capro', *{words}]\n"
        "from capro.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'pyarrow', 'rich', 'faiss', 'scipy', 'sklearn', 'fsspec'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    assert "Usage: " in done.stdout


def test_scan_prints_a_table_or_json(folder: Path, tmp_path: Path) -> None:
    done = capro("scan", folder, "--run", tmp_path / "run")
    assert done.returncode == 0
    assert "6 rows in the source = 6 samples + 0 quarantined" in done.stdout
    # no bar where stderr is no terminal
    assert re.fullmatch(r"scan: done in \d+ s\nno preset was named: photo is used, .*\n", done.stderr)
    again = capro("scan", folder, "--run", tmp_path / "run", "--json")
    summary = json.loads(again.stdout)
    assert summary["classes"] == {"cat": {"train": 3}, "dog": {"train": 3}}
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "skipped" in events  # the second time nothing had changed


def test_scan_again_when_a_file_changes(folder: Path, tmp_path: Path) -> None:
    capro("scan", folder, "--run", tmp_path / "run")
    (folder / "cat" / "new.png").write_bytes(png(99))
    done = capro("scan", folder, "--run", tmp_path / "run", "--json")
    assert json.loads(done.stdout)["samples"] == 7


def test_a_copied_source_is_scanned_again_and_nothing_behind_it(folder: Path, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "elsewhere"

    def finished(source: Path) -> list[str]:
        events = run / "events.jsonl"
        events.unlink(missing_ok=True)
        done = capro("scan", source, "--run", run)
        assert done.returncode == 0, done.stderr
        opened = Run.open(run)
        PLAN.do(opened, "pixels")
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        return [line["stage"] for line in lines if line["event"] == "finished"]

    assert finished(folder) == ["scan", "pixels"]
    shutil.copytree(folder, copy, copy_function=shutil.copy)  # new times
    assert finished(copy) == ["scan"]
    assert str(copy) in manifest_of(Run.open(run)).sources[0].root
    (copy / "cat" / "new.png").write_bytes(png(99))
    assert finished(copy) == ["scan", "pixels"]


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["scan", "nowhere", "--run", "r"], "nowhere: no such file or folder", "check the path"),
        (["scan", "data", "--run", "r", "--lable-column", "x"], "no such option", "capro scan --help"),
        (["scan", "data", "--run", "r", "--label-column", "x"], "no metadata file", "metadata.csv"),
        (["scan", "data"], "--run", "`capro scan --help`"),
        (["scan", "data", "--run", "r", "--subset", "goggle"], "got 'goggle'", "capro config show"),
        (["scna"], "no such command", "capro --help"),
        (["scan", "data", "--run", "r", "--set", "scan.max_pixel=3"], "unknown setting", "did you mean"),
        (["config", "show", "--preset", "nusvide"], "no preset 'nusvide'", "did you mean 'nuswide'?"),
        (
            ["run", "--data", "data", "--memory", "4 gigs"],
            "--memory '4 gigs': not an amount of memory",
            "--memory 4GB",
        ),
        (["run", "--data", "data", "--memory", "0"], "--memory '0'", "--memory 4GB"),
        (["scan", "data", "--run", "data"], "not empty and not a run directory", "new folder"),
    ],
)
def test_mistakes_exit_with_2_and_a_hint(folder: Path, args: list[str], message: str, hint: str) -> None:
    done = capro(*args, cwd=folder.parent)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]


def test_interrupt_exits_with_130_and_leaves_nothing_partial(tmp_path: Path) -> None:
    for seed in range(3000):
        path = tmp_path / "data" / "cat" / f"{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed % 7))
    command = [*CAPRO, "scan", str(tmp_path / "data"), "--run", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    events = tmp_path / "run" / "events.jsonl"
    while not (events.exists() and "started" in events.read_text()):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[0] == "error: interrupted"
    assert "Traceback" not in stderr
    assert list((tmp_path / "run" / "scan").iterdir()) == []


class Left(Exception):
    """A rank has left without what Python does at its end."""


@pytest.fixture
def main_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)

    def leave(code: int) -> NoReturn:
        raise Left(code)

    monkeypatch.setattr("capro.cli.program.leave", leave)  # which would end the tests
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_launcher_that_ends_a_rank_gets_a_sentence(
    main_rank: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "app", lambda **_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Left) as caught:
        main()
    assert caught.value.args == (128 + signal.SIGTERM,)
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ended by the launcher")
    assert hint == "hint: give the same command again: it continues where it stopped"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a second one ends it at once


def test_what_another_rank_tells_is_not_printed_again(
    main_rank: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(**_options: object) -> None:
        raise RankError("rank 1: the disk is full", rank=1)

    monkeypatch.setattr(program, "app", app)
    with pytest.raises(Left) as caught:
        main()
    assert caught.value.args == (2,)
    assert capsys.readouterr().err == ""


def test_a_rank_that_has_finished_leaves_at_once(main_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the process group that lives on has aborted finished ranks while Python ended."""
    monkeypatch.setattr(program, "app", lambda **_: None)
    with pytest.raises(Left) as caught:
        main()
    assert caught.value.args == (0,)


def test_version_and_config_show() -> None:
    assert capro("--version").stdout.startswith("capro 0.")
    shown = capro("config", "show", "--preset", "nuswide", "--set", "train.gamma=0.7").stdout
    assert "gamma: 0.7" in shown
    assert json.loads(capro("config", "show", "--json").stdout)["train"]["queue"] == 8192


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{' '.join(CAPRO)} config show | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


def test_run_of_an_existing_directory_goes_on_with_its_settings(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Run.create(tmp_path / "r", config.load(overrides=["seed=5", f"data.source={folder}"]))
    seen: list[Run] = []

    def run_all(run: Run, **_: object) -> dict[str, dict[str, float]]:
        seen.append(run)
        return {}

    monkeypatch.setattr(stages, "run_all", run_all)
    app(["run", "--run", str(tmp_path / "r"), "--set", "match.k=7"], standalone_mode=False)
    said = capsys.readouterr().err.splitlines()
    assert f"results are in {tmp_path / 'r'}" in said
    for command in ("report", "export", "export-model"):
        assert any(line.startswith(f"  capro {command} {tmp_path / 'r'} ") for line in said)
    assert not any("capro evaluate" in line for line in said)  # there is no test split
    assert (seen[0].settings.seed, seen[0].settings.match.k) == (5, 7)
    assert Run.open(tmp_path / "r").settings.match.k == 5  # no stage has been done with another


@pytest.mark.parametrize("command", [["run"], ["run", "--data", "typo"], ["scan", "typo"]])
def test_nothing_is_written_for_a_source_that_is_not_there(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no data source|typo: no such file"):
        app([*command, "--run", "r"], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_a_stage_says_whether_it_worked(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "r", config.load(overrides=[f"data.source={folder}"]))
    for words in ("scan: done in", "scan: fresh"):
        PLAN.do(run, "scan", watch=program.plain_lines())
        assert words in capsys.readouterr().err


def test_help_lists_commands_in_the_order_of_use() -> None:
    group = get_command(app)
    names = group.list_commands(None)  # type: ignore[attr-defined,arg-type]
    assert sorted(names) == sorted(group.commands)  # type: ignore[attr-defined]
    assert names[:3] == ["demo", "run", "scan"]
    assert names[-1] == "config"


def test_transformers_does_not_write_to_the_terminal(tmp_path: Path) -> None:
    code = """
import sys
from capro.cli import main
sys.argv = ["capro", "config", "presets"]
try:
    main()
except SystemExit:
    pass
from transformers import ViTConfig, ViTForImageClassification
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16)
ViTForImageClassification(ViTConfig(**sizes)).save_pretrained("FOLDER")
from capro.models.backbones import load_backbone
print(load_backbone("FOLDER").dim)
""".replace("FOLDER", str(tmp_path / "vit"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n8\n")
    assert done.stderr == ""
