"""evaluate, doctor and bench as commands: stdout, messages, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from capro.bench import TABLES
from capro.cli import main
from capro.pipeline.run import Run
from capro.stages import run_all
from tests import squares as tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    base = tmp_path_factory.mktemp("cli")
    data = tiny.write_data(base / "data", train=8, test=3, noise=2)
    made = Run.create(base / "run", tiny.settings(data))
    run_all(made)
    return made


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["capro", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_evaluate(run: Run, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    truth = Path(run.settings.data.source or "") / "train_truth.csv"
    assert call(monkeypatch, "evaluate", run.path, "--truth", truth, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["methods"]) == {"vanilla", "capro"}
    assert found["truth"]["web_label_accuracy"] == 0.75
    assert call(monkeypatch, "evaluate", "--run", run.path) == 0
    assert "by class" in capsys.readouterr().out


def test_evaluate_wants_one_run(run: Run, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert call(monkeypatch, "evaluate", run.path, "--run", run.path) == 2
    assert "give one run directory" in capsys.readouterr().err
    assert call(monkeypatch, "evaluate", run.path, "--open-set") == 2
    error = capsys.readouterr().err
    assert "no open class" in error
    assert "hint: give data with other classes" in error


def test_doctor(run: Run, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert call(monkeypatch, "doctor", run.path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["facts"]["samples"] == 24
    assert call(monkeypatch, "doctor", run.settings.data.source) == 0
    text = capsys.readouterr().out
    assert "small classes" in text
    assert "classes suggest" in text


def test_bench(run: Run, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    data = run.settings.data
    words = ["--data", data.source, "--run", tmp_path / "out", "--seeds", 1, "--from", run.path]
    (tmp_path / "tiny.yaml").write_text(
        "\n".join(f"{name}: {json.dumps(value)}" for name, value in run.settings.model_dump().items())
    )
    words += ["--config", tmp_path / "tiny.yaml"]
    assert call(monkeypatch, "bench", "main", "--row", "k-NN label vote", *words) == 0
    out = capsys.readouterr()
    assert "| k-NN label vote |" in out.out
    assert "[2/2] main: k-NN label vote, seed 0" in out.err
    assert '"taken"' in next((tmp_path / "out").rglob("events.jsonl")).read_text()
    pinned = ["--set", "train.lambda_bts=0.5", "--set", "train.epochs=1"]
    assert call(monkeypatch, "bench", "main", "--row", "k-NN label vote", *words, *pinned) == 0
    note = "train.lambda_bts: used in the row 'capro, settings as given' only"
    assert note in " ".join(capsys.readouterr().err.split())
    assert call(monkeypatch, "bench", "mian", *words) == 2
    assert "did you mean 'main'?" in capsys.readouterr().err


def test_bench_all_leaves_out_a_table_that_the_data_has_no_form_for(
    monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
) -> None:
    """Open-set recognition needs one label per sample; the tables after it are made all the same."""
    data = tiny.write_data(tmp_path / "data", train=8, test=3, noise=2, multi=True)
    settings = tiny.settings(data, multi=True)
    (tmp_path / "tiny.yaml").write_text(json.dumps(settings.model_dump(mode="json")))
    words = ["--data", data, "--run", tmp_path / "out", "--seeds", 1, "--config", tmp_path / "tiny.yaml"]
    monkeypatch.setattr("capro.bench.TABLES", {name: TABLES[name] for name in ("openset", "policy")})
    assert call(monkeypatch, "bench", "all", *words) == 0
    out = capsys.readouterr()
    assert "table openset is left out: open-set recognition needs one label per sample" in out.err
    assert "| CAPro's rule |" in out.out
    assert call(monkeypatch, "bench", "openset", *words) == 2  # asked for by name, it is an error
    assert "hint: use another table" in capsys.readouterr().err
