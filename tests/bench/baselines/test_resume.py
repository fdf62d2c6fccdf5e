"""A baseline that was killed goes on at its last checkpoint, and ends with the bytes of an undisturbed run."""

from __future__ import annotations

import shutil

import pytest

from capro.bench.baselines import mentors, multimodal
from capro.bench.baselines.registry import baseline
from capro.pipeline.run import Run
from capro.train import loop
from tests.bench.cases import prepare

STEPS = 18  # of a training: six epochs of three; the mentor learns before epochs 1 and 4
KILLED_AT = 11  # the last step of epoch 3: the mentor has seen two thirds of what it learns from next


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


OWN = ("pretrain.epochs=6", "log.checkpoint_minutes=1e-9")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return prepare(tmp_path_factory.mktemp("single"), *OWN)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return prepare(tmp_path_factory.mktemp("several"), *OWN, multi=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentors, "MENTOR_STEPS", 20)
    monkeypatch.setattr(multimodal, "FEWEST_STEPS", 10)


def trained(run: Run, name: str, *, kill: int | None = None) -> int:
    """Train a baseline, or kill it at a step; returns how many steps were done."""
    done, learning_rate = [0], loop.learning_rate

    def rate(*args, **options):  # type: ignore[no-untyped-def]
        if done[0] == kill:
            raise Killed
        done[0] += 1
        return learning_rate(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", rate)
        if kill is None:
            baseline(run, name)
        else:
            with pytest.raises(Killed):
                baseline(run, name)
    return done[0]


def check(run: Run, name: str) -> None:
    folder = run.folder(f"baselines/{name}")
    baseline(run, name)
    whole = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "stage.json"}
    shutil.rmtree(folder)
    trained(run, name, kill=KILLED_AT)
    assert trained(run, name) == STEPS - KILLED_AT
    assert {file.name for file in folder.iterdir()} == {*whole, "stage.json"}  # no checkpoint is left
    for file, content in whole.items():
        assert folder.joinpath(file).read_bytes() == content, file


@pytest.mark.parametrize("name", ["mentornet", "somnet", "mile", "mopro", "coteaching", "multimodal"])
def test_one_label(single: Run, name: str) -> None:
    check(single, name)


def test_several_labels(several: Run) -> None:
    check(several, "mcpl")
