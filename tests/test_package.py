"""The wheel: complete, and used in an environment of its own, far from the clone."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.data.corpus import png

ROOT = Path(__file__).resolve().parents[1]
QUICK = [
    "net.backbone=small", "views.size=24", "pretrain.epochs=2", "pretrain.warmup_epochs=0", "finetune.epochs=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "capro").rglob("*") if path.is_file())
    wanted = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


class Elsewhere:
    """An environment outside the clone, with this one's dependencies and the wheel's capro."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False)
        self._bin = folder / "env" / "bin"
        site = next((folder / "env" / "lib").glob("python*/site-packages"))
        (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # not its .pth files
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self._bin / "python",
            "install",
            "-q",
            "--no-deps",
            wheel,
        ]
        subprocess.run(install, check=True, capture_output=True)

    def run(self, *words: object) -> str:
        """What a program of the environment prints."""
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
        }
        command = [self._bin / str(words[0]), *map(str, words[1:])]
        done = subprocess.run(
            command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"), wheel)


@pytest.mark.slow
def test_a_new_environment_has_the_wheels_capro(elsewhere: Elsewhere) -> None:
    assert elsewhere.run("python", "-c", "import capro; print(capro.__file__)").startswith(
        str(elsewhere.folder)
    )
    pictures = elsewhere.folder / "pictures"
    for seed in range(6):
        (pictures / f"class {seed % 2}").mkdir(parents=True, exist_ok=True)
        (pictures / f"class {seed % 2}" / f"{seed}.png").write_bytes(png(seed))
    assert "6 rows in the source = 6 samples" in elsewhere.run("capro", "scan", pictures, "--run", "scanned")
    assert "report.html" in elsewhere.run("capro", "report", "scanned")  # templates are there
    assert "tiger" in elsewhere.run(
        "python", "-c", "from capro.models import wordnet; print(wordnet.senses('tiger'))"
    )


@pytest.mark.slow
@pytest.mark.package
def test_a_new_environment_runs_everything(elsewhere: Elsewhere) -> None:
    """Two minutes: `make wheel` does it."""
    folder, quick = elsewhere.folder, [word for each in QUICK for word in ("--set", each)]
    assert "report, opens offline" in elsewhere.run("capro", "demo", "--run", "demo", *quick)
    assert (folder / "demo" / "report" / "report.html").stat().st_size > 100_000
    elsewhere.run("capro", "export", "demo", "--to", "folder", "--images", "copy", "--out", "cleaned")
    elsewhere.run("capro", "run", "--data", "cleaned", "--run", "own", *quick, "--set", "match.top_k=5")
    elsewhere.run("capro", "export-model", "own", "--out", "model")
    elsewhere.run("capro", "predict", "model", "cleaned", "--out", "labels.csv")
    with (folder / "labels.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) > 1000
    assert not [row for row in rows if row["error"] or not row["label"]]
