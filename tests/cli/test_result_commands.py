"""export, export-model and predict as commands."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capro.cli import app
from capro.errors import CaproError
from tests.made_up import CLASSES, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("cli")).path


def capro(*words: object) -> None:
    app(list(map(str, words)), standalone_mode=False)


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
