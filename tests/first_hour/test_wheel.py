"""The wheel outside the clone: what is packed is enough for the first hour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.first_hour.crawl import CLASSES, write_crawl
from tests.first_hour.test_first_hour import QUICK

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content alone; the packages it needs come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder / "dist", ROOT], check=True)
    (wheel,) = (folder / "dist").glob("capro-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def test_from_the_wheel_to_predictions(installed: Path, tmp_path: Path) -> None:
    crawl = write_crawl(tmp_path / "crawl")
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def capro(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "capro", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    where = [sys.executable, "-c", "import capro; print(capro.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(installed)
    quick = [part for each in QUICK for part in ("--set", each)]
    assert "verdicts:" in capro("run", "--data", "crawl", "--run", "run", "--join-labels", *quick)
    capro("report", "run")
    assert (tmp_path / "run" / "report" / "report.html").stat().st_size > 100_000
    capro("export", "run", "--to", "folder", "--out", "cleaned")
    assert len(pd.read_csv(tmp_path / "cleaned/train/metadata.csv")) > 100
    capro("export-model", "run", "--out", "model")
    capro("predict", "model", "crawl/Vögel", "--out", "labels.csv")
    assert len(pd.read_csv(tmp_path / "labels.csv")) == crawl.pictures // len(CLASSES)
