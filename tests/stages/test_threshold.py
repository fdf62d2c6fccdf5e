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
    refit, logits = module._refit, module._logits

    def training(job: Any, net: Any, ts: Any, labels: Any, inputs: Any, at: Any, *rest: Any) -> None:
        seen.append(at)
        assert len(labels) == len(at)
        refit(job, net, ts, labels, inputs, at, *rest)

    def judging(job: Any, net: Any, ts: Any, inputs: Any, at: Any) -> Any:
        judged.append(at)
        return logits(job, net, ts, inputs, at)

    monkeypatch.setattr(module, "_refit", training)
    monkeypatch.setattr(module, "_logits", judging)
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
