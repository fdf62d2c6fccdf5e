"""`capro review` as a command: export, import, serving, mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from capro.cli import app
from capro.errors import CaproError, ConfigError, DataError
from capro.pipeline.run import Run
from capro.review.serving import ApplyError, run_stages
from capro.review.session import ReviewSession
from capro.review.views import View
from tests.review.made import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("review"))


def capro(*words: object) -> None:
    app(list(map(str, words)), standalone_mode=False)


def test_export_and_import(run: Run, tmp_path: Path, capsys: Any) -> None:
    session = ReviewSession(run)
    session.decide([0, 1], "out", None, person="me", view=View())
    session.log.close()
    file = tmp_path / "d.csv"
    capro("review", run.path, "--export", file)
    assert capsys.readouterr().out == f"2 decisions in {file}\n"
    capro("review", run.path, "--import", file)
    said = capsys.readouterr()
    assert said.out == f"2 decisions taken from {file}\n"
    assert f"capro run --run {run.path}" in said.err
    with pytest.raises(ConfigError, match="at once"):
        capro("review", run.path, "--import", file, "--export", file)


def test_a_run_that_is_not_cleaned_is_cleaned_first(tmp_path: Path) -> None:
    from capro import config

    made = Run.create(tmp_path / "run", config.load())
    with pytest.raises(DataError, match="no data source"):  # what the first stage needs
        capro("review", made.path)


def test_a_missing_extra_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(CaproError, match="the review needs uvicorn") as caught:
        capro("review", run.path)
    assert "capro[review]" in caught.value.hint


def test_it_serves_until_it_is_interrupted(run: Run) -> None:
    command = [sys.executable, "-m", "capro", "review", str(run.path), "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        assert link.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(link) as answer:
            assert answer.status == 200
        os.kill(server.pid, signal.SIGINT)
        _, said = server.communicate(timeout=30)
    assert "warning: 0.0.0.0 can be reached by other machines" in said
    assert "opened; for another browser: http" in said
    assert "2 samples decided" in said
    assert "Traceback" not in said
    assert server.returncode in (0, 130)


def test_apply_reports_why_a_run_cannot_run_stages(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="error: "):
        list(run_stages(tmp_path / "no run"))
