"""A small share of the soak test (docs/reliability.md): some cases of each attack."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from capro.stages import classes, embed, match
from soak.attack import Attack, Broken, Outcome, Tally, choices, keep_failure
from soak.pipeline import difference
from soak.runner import ATTACKS, table

SEED = 3
INPUTS = {  # numbers of cases
    "images": range(8),
    "tables": range(25),
    "tars": range(20),
    "configs": range(16),
    "model-folders": range(12),
    "texts": range(3),
}


def strike(attack: Attack, numbers: Sequence[int], folder: Path, common: Path | None = None) -> Outcome:
    """Cases in this process."""
    case = attack.ready(common or folder / "common")
    faults = inputs = 0
    for number in numbers:
        place = folder / f"case-{number}"
        place.mkdir()
        found = case(number, choices(attack.name, SEED, number), place)
        faults, inputs = faults + found.faults, inputs + found.inputs
        shutil.rmtree(place)
    return Outcome(faults, inputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INPUTS)
def test_hostile_inputs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (classes, embed, match):  # put back what an attack replaces in its own process
        monkeypatch.setattr(module, "load_text_encoder", module.load_text_encoder)
    monkeypatch.setattr(os, "fsync", os.fsync)
    monkeypatch.setattr(socket.socket, "connect", socket.socket.connect)
    assert strike(ATTACKS[name], INPUTS[name], tmp_path).inputs >= len(INPUTS[name])


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "numbers"),
    [("kills", [2001, 2003]), ("together", [1, 3]), ("disks", [301, 303]), ("damage", [13, 15, 17, 19])],
)  # odd: the pipeline plus
def test_attacks_on_a_run_directory(name: str, numbers: list[int], common: Path, tmp_path: Path) -> None:
    assert strike(ATTACKS[name], numbers, tmp_path, common).faults


def test_a_changed_byte_is_a_difference(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "clean").mkdir(parents=True)
        (tmp_path / name / "clean" / "labels.npy").write_bytes(b"same")
        (tmp_path / name / "clean" / "stage.json").write_text(f'{{"seconds": {len(name)}.5, "result": 1}}')
    assert difference(tmp_path / "a", tmp_path / "b") == ""
    (tmp_path / "b" / "clean" / "labels.npy").write_bytes(b"samf")
    (tmp_path / "b" / ".left.tmp").write_bytes(b"")
    assert difference(tmp_path / "a", tmp_path / "b") == "too many: .left.tmp; other bytes: clean/labels.npy"


def test_a_failure_is_kept_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    case = tmp_path / "case"
    case.mkdir()
    (case / "input").write_bytes(b"\0bad")
    line = keep_failure(tmp_path / "kept", "tables", 7, 12, case, "wrong\nand more")
    assert line == "python -m soak --only tables --seed 7 --at 12: wrong"
    assert (tmp_path / "kept" / "tables-7-12" / "case" / "input").read_bytes() == b"\0bad"
    assert "and more" in (tmp_path / "kept" / "tables-7-12" / "failure.txt").read_text()


def test_the_table_counts() -> None:
    tally = Tally("kills")
    tally.add(Outcome(faults=3))
    tally.add(Outcome(faults=1, inputs=2))
    tally.failures.append("one")
    assert table([tally], seed=5).splitlines()[-1] == "| kills | 2 | 4 | 2 | 1 | 0.0 |"
    assert ", seed 5" in table([tally], seed=5)


def test_an_image_that_is_decoded_in_two_ways_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from soak import images
    from tests.data.corpus import png

    images.check(png(1))
    real = images.decode_bytes
    monkeypatch.setattr(images, "decode_bytes", lambda *args: 255 - real(*args))
    with pytest.raises(Broken, match="other pixels"):
        images.check(png(1))


def test_every_attack_has_a_name_and_a_goal() -> None:
    files = {path.stem for path in Path(sys.modules["soak.runner"].__file__ or "").parent.glob("*.py")}
    assert {name.replace("-", "_") for name in ATTACKS} <= files
    assert sum(attack.goal for attack in ATTACKS.values() if attack.batch) >= 100_000
    assert (ATTACKS["kills"].goal, ATTACKS["damage"].goal) == (2000, 500)
