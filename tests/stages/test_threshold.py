"""The open-set threshold: chosen on samples that no classifier has seen that judges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capro.data.labels import kind_of
from capro.pipeline.artefacts import read_array
from capro.pipeline.run import Run
from capro.stages import training as module
from capro.stages.threshold import threshold
from capro.train.setup import training_set
from tests.made_up import make_run


@pytest.fixture(params=["one label", "several labels", "full"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return make_run(tmp_path, multi=request.param == "several labels", frozen=request.param != "full")


@pytest.mark.parametrize("method", ["vanilla", "capro"])
def test_every_sample_is_judged_once_by_a_classifier_that_has_not_seen_it(
    run: Run, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    judged: list[np.ndarray] = []
    fit, forward, classes = module.fit_step, module.forward_plain, len(training_set(run).classes)

    def training(job: Any, objective: Any, inputs: Any, at: Any, *rest: Any, **named: Any) -> Any:
        if not seen or not np.array_equal(seen[-1], at):  # a classifier goes through several schedules
            seen.append(at)
        assert len(objective._labels) == len(at)
        return fit(job, objective, inputs, at, *rest, **named)

    def judging(function: Any, inputs: Any, at: Any, *, width: int, device: Any) -> Any:
        if width == classes:  # else features, of an encoder that was trained
            judged.append(at)
        return forward(function, inputs, at, width=width, device=device)

    monkeypatch.setattr(module, "fit_step", training)
    monkeypatch.setattr(module, "forward_plain", judging)
    found = threshold(run, method)
    labels = read_array(run.folder("clean") / "labels.npy")
    known = kind_of(np.array(labels)).labelled(np.array(labels)).sum() if method == "capro" else len(labels)
    assert found["known"]["samples"] == known
    everyone = np.concatenate(judged)
    assert len(np.unique(everyone)) == len(everyone) == known
    for taught, asked in zip(seen, judged, strict=True):
        assert not set(taught) & set(asked)
        assert len(taught) + len(asked) == known
    assert len(judged) == module.FOLDS
    threshold(run, method)
    assert len(judged) == module.FOLDS  # fresh: nothing is done again


def test_large_sets_stop_when_enough_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_run(tmp_path, frozen=True)
    monkeypatch.setattr(module, "ENOUGH", 6)
    monkeypatch.setattr(module, "MOST", 20)
    assert threshold(made, "vanilla")["known"]["samples"] == 8  # two folds of 20
