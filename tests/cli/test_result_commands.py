"""export, export-model and predict as commands."""

from __future__ import annotations

import csv
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capro.cli import app
from capro.errors import CaproError
from tests import commands
from tests.commands import Capro
from tests.made_up import CLASSES, make_run

typed = commands.capro  # with the error messages; the function `capro` below lets errors through


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("cli")).path


def capro(*words: object) -> None:
    app(list(map(str, words)), standalone_mode=False)


@pytest.mark.parametrize(
    "words",
    ["export RUN --out NEW", "report RUN", "doctor RUN", "review RUN --export NEW.csv", "scan --run RUN"],
)
def test_a_command_that_needs_no_torch_does_not_import_it(run: Path, tmp_path: Path, words: str) -> None:
    named = words.replace("RUN", str(run)).replace("NEW", str(tmp_path / "new")).split()
    code = (
        f"import sys; sys.argv = ['capro', *{named}]\n"
        "from capro.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "else: code = 0\n"
        "print('LOADED', code or 0, sorted({'torch', 'transformers', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED 0 []", done.stderr


def test_export_prints_how_to_read_it_back(run: Path, tmp_path: Path, capsys: Any) -> None:
    capro("export", run, "--to", "parquet", "--out", tmp_path / "out")
    said = capsys.readouterr()
    assert "samples in" in said.out
    assert f"capro scan {tmp_path}/out/samples.parquet --image-root" in said.err
    capro("export", run, "--to", "hf", "--out", tmp_path / "hf", "--json")
    assert json.loads(capsys.readouterr().out)["format"] == "hf"


def test_export_model_then_predict(run: Path, tmp_path: Path, capsys: Any) -> None:
    model = tmp_path / "model"
    capro("export-model", run, "--out", model)
    said = capsys.readouterr().out
    assert "model of 3 classes" in said
    known = json.loads((model / "config.json").read_text())["open_set"]["known"]
    cost = f"rejects {100 * (1 - known['kept']):.0f} % of images of known classes"
    assert cost in said
    images = run.parent / "data" / "test" / "images"
    capro("predict", model, images, "--top", "1")
    said = capsys.readouterr()
    rows = list(csv.DictReader(said.out.splitlines()))
    assert len(rows) == 6
    assert {row["label"] for row in rows} <= set(CLASSES)
    assert "6 images" in said.err
    out = tmp_path / "p.jsonl"
    capro("predict", model, images, tmp_path / "gone.png", "--out", out, "--open-set")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[-1]["error"] == "no such file or folder"
    assert all(line["open"] in (True, False) for line in lines[:-1])
    assert cost in capsys.readouterr().err


def test_what_is_exported_has_the_rights_of_any_new_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    capro("export-model", run, "--out", tmp_path / "model")
    capro("export", run, "--to", "folder", "--images", "copy", "--out", tmp_path / "data")
    files = [path for name in ("model", "data") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert len(files) > 5
    assert {path.stat().st_mode for path in files} == {(tmp_path / "any").stat().st_mode}


def test_predict_fails_where_no_image_could_be_read(run: Path, tmp_path: Path, capsys: Any) -> None:
    capro("export-model", run, "--out", tmp_path / "model")
    (tmp_path / "a.txt").write_text("no image")
    with pytest.raises(SystemExit) as left:
        capro("predict", tmp_path / "model", tmp_path / "a.txt", tmp_path / "gone.png")
    assert left.value.code == 1
    said = capsys.readouterr()
    assert [line.split(",")[0] for line in said.out.splitlines()[-2:]] == [
        str(tmp_path / "a.txt"), str(tmp_path / "gone.png")
    ]  # fmt: skip
    assert "error: no image could be read" in said.err
    assert "hint: " in said.err


def test_a_file_that_exists_is_named_before_any_work(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "classes.yaml").write_text("mine")
    with pytest.raises(SystemExit) as left:
        capro("classes", "suggest", "--run", tmp_path / "no-run", "--out", tmp_path / "classes.yaml")
    assert left.value.code == 2
    assert "classes.yaml: exists already" in capsys.readouterr().err
    assert (tmp_path / "classes.yaml").read_text() == "mine"


def test_predict_on_something_else_is_an_error_with_a_hint(run: Path) -> None:
    with pytest.raises(CaproError, match="not a model folder") as caught:
        capro("predict", run, run)
    assert "export-model" in caught.value.hint


# --- damaged files and disks ----------------------------------------------------------------------


@pytest.fixture
def harmed(run: Path) -> Iterator[Path]:
    """The run, of which a test may damage files: they are put back."""
    files = [file for file in run.rglob("*") if file.is_file()]
    before = {file: (file.read_bytes(), file.stat()) for file in files}
    yield run
    for file, (data, stat) in before.items():
        if not file.exists() or file.read_bytes() != data or file.stat().st_mtime_ns != stat.st_mtime_ns:
            file.write_bytes(data)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _flip(file: Path, *, quietly: bool) -> None:
    stat, data = file.stat(), bytearray(file.read_bytes())
    data[-9] ^= 16
    file.write_bytes(data)
    if quietly:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("quietly", [False, True])
@pytest.mark.parametrize(
    ("command", "file"),
    [("export-model", "finetune/model.safetensors"), ("export", "clean/verdicts.parquet"),
     ("export", "scan/manifest.parquet"), ("export", "classes/classes.json")],
)  # fmt: skip
def test_flipped_bits_do_not_leave_the_run(
    harmed: Path, tmp_path: Path, typed: Capro, command: str, file: str, quietly: bool
) -> None:
    """They passed `run` and `export-model`."""
    _flip(harmed / file, quietly=quietly)
    code, _, error = typed(command, harmed, "--out", tmp_path / "out")
    lines = error.splitlines()[-2:]
    stage = file.partition("/")[0]
    assert code == 2
    assert lines[0] == f"error: {harmed / file}: damaged since the {stage} stage wrote it"
    again = f"`capro run --run {harmed}` does the {stage} stage again"
    assert (
        lines[1]
        == f"hint: {'`rm ' + str(harmed / stage / 'stage.json') + '`, then ' if quietly else ''}{again}"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_empty_array_is_damaged_and_not_interrupted(harmed: Path, tmp_path: Path, typed: Capro) -> None:
    (harmed / "clean" / "labels.npy").write_bytes(b"")
    code, _, error = typed("report", harmed, "--out", tmp_path / "r.html")
    assert code == 2
    assert "clean/labels.npy: damaged since the clean stage wrote it" in error
    assert "interrupted" not in error


def test_a_damaged_stage_json_stops_no_command_but_those_that_need_it(
    harmed: Path, tmp_path: Path, typed: Capro
) -> None:
    (harmed / "evaluate" / "stage.json").write_text("{")
    assert typed("export", harmed, "--out", tmp_path / "out")[0] == 0
    code, _, error = typed("export-model", harmed, "--out", tmp_path / "model")  # its card has the figures
    assert (code, "evaluate/stage.json: damaged" in error) == (2, True)
    (harmed / "clean" / "stage.json").write_text("{")
    code, _, error = typed("export", harmed, "--out", tmp_path / "out2")
    assert code == 2
    assert "clean/stage.json: damaged since the clean stage wrote it" in error
    assert f"hint: `capro run --run {harmed}` does the clean stage again" in error


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file/out", "a part of the path is a file, not a folder"),
        ("n" * 300, "the name is too long for the file system"),
        ("file", "exists already"),
        (".", "is the folder you are in"),
    ],
)
@pytest.mark.parametrize("command", ["export", "export-model"])
def test_a_bad_out_is_no_bug(
    run: Path,
    tmp_path: Path,
    typed: Capro,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    out: str,
    message: str,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    code, _, error = typed(command, run, "--out", out)
    assert code == 2
    assert message in error
    assert error.splitlines()[-1].startswith("hint: ")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("out", "message"), [("folder.csv", "is a folder"), ("file/x.csv", "is a file")])
def test_a_bad_out_of_predict_and_report_is_no_bug(
    run: Path, tmp_path: Path, typed: Capro, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.chdir(tmp_path)
    model = run.parent / "model"
    if not model.exists():
        typed("export-model", run, "--out", model)
    for words in (["predict", model, run.parent / "data"], ["report", run]):
        code, _, error = typed(*words, "--out", out)
        assert code == 2
        assert message in error or "folder.csv: exists already" in error


def test_other_errors_of_the_system_stay_bug_reports(
    run: Path, tmp_path: Path, typed: Capro, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capro.export import dataset

    for error, code, word in (
        (OSError(errno.EINVAL, "Invalid argument"), 1, "this is a bug in capro"),
        (EOFError("no more"), 1, "this is a bug in capro"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), 2, "/etc/x: permission denied"),
    ):

        def fails(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(dataset, "export_data", fails)
        found = typed("export", run, "--out", tmp_path / "out")
        assert found[0] == code
        assert word in found[2]
