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
    assert "model of 3 classes" in capsys.readouterr().out
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


def test_predict_on_something_else_is_an_error_with_a_hint(run: Path) -> None:
    with pytest.raises(CaproError, match="not a model folder") as caught:
        capro("predict", run, run)
    assert "export-model" in caught.value.hint
