"""Baselines: small parts against hand values, and every one on a tiny run of each task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.bench.baselines import BASELINES, baseline
from capro.errors import ConfigError
from capro.run.directory import Run
from capro.stages import PLAN
from tests import squares as tiny


def prepare(base: Path, *, multi: bool) -> Run:
    data = tiny.write_data(base / "data", multi=multi)
    run = Run.create(base / "run", tiny.settings(data, "pretrain.epochs=12", multi=multi))
    PLAN.do(run, "scan", "pretrain")
    return run


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return prepare(tmp_path_factory.mktemp("single"), multi=False)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return prepare(tmp_path_factory.mktemp("several"), multi=True)


@pytest.mark.parametrize("name", BASELINES)
def test_one_label(single: Run, name: str) -> None:
    if name == "cleanlab":
        pytest.importorskip("cleanlab")
    found = baseline(single, name)
    assert set(found) == {"top1", "top5"}
    assert found["top1"] > 0.5  # a third is chance
    scores = np.load(single.folder(f"baselines/{name}") / "test.npy")
    assert scores.shape == (18, 3)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    begun = single.path.joinpath("events.jsonl").read_text().count('"started"')
    assert baseline(single, name) == found
    assert single.path.joinpath("events.jsonl").read_text().count('"started"') == begun


@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.several])
def test_several_labels(several: Run, name: str) -> None:
    if name == "cleanlab":
        pytest.importorskip("cleanlab")
    found = baseline(several, name)
    assert found["mAP"] > 0.5


def test_baselines_differ(single: Run) -> None:
    names = ["vanilla", "linear", "smoothing", "mixup", "bootstrap", "scc", "ncr", "smallloss"]
    for name in names:
        baseline(single, name)
    scores = [np.load(single.folder(f"baselines/{name}") / "test.npy") for name in names]
    for i, a in enumerate(scores):
        for b in scores[i + 1 :]:
            assert np.abs(a - b).max() > 1e-4


def test_unknown_baseline(single: Run) -> None:
    with pytest.raises(ConfigError, match="no baseline 'knnn'") as error:
        baseline(single, "knnn")
    assert "knn" in error.value.hint


def test_several_processes_are_refused(single: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="baselines train in one process, 2 were launched"):
        baseline(single, "knn")
