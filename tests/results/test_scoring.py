"""Probabilities of samples by a trained model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from capro.data.manifest import manifest_of
from capro.errors import RunError
from capro.pipeline.artefacts import STEP1
from capro.pipeline.run import Run
from capro.results.scoring import scores_of
from capro.train.setup import training_set
from tests.made_up import make_run


def test_a_model_that_gives_nan_is_an_error_with_model_and_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    training, test = training_set(run), manifest_of(run).split("test")
    whole = scores_of(run, training, STEP1, test)
    assert np.isfinite(whole).all()
    read = Run.read

    def broken(self: Run, artefact: object) -> object:
        found = read(self, artefact)  # type: ignore[arg-type]
        if artefact is not STEP1:
            return found
        return {name: value * torch.nan for name, value in found.items()}  # type: ignore[attr-defined]

    monkeypatch.setattr(Run, "read", broken)
    first = training.ids[test[0]]
    with pytest.raises(RunError, match=f"{STEP1.stage}/{STEP1.file}: sample {first} has nan as a score"):
        scores_of(run, training, STEP1, test)
