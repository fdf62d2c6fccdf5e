"""Networks from settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from capro import config
from capro.data.manifest import manifest_of
from capro.errors import RunError
from capro.pipeline.artefacts import PLAIN_FEATURES, STEP1
from capro.pipeline.run import Run
from capro.train import setup
from capro.train.setup import scores_of, training_set
from tests.made_up import make_run


def weights(*overrides: str) -> torch.Tensor:
    settings = config.load(overrides=["net.backbone=small", "views.size=16", *overrides])
    return next(setup.pretrained(settings).parameters())


def test_a_learning_encoder_starts_by_the_seed() -> None:
    assert torch.equal(weights("seed=1"), weights("seed=1"))
    assert not torch.equal(weights("seed=1"), weights("seed=2"))


def test_a_frozen_encoder_is_the_same_for_every_seed() -> None:
    frozen = "net.mode=frozen"
    assert torch.equal(weights(frozen, "seed=1"), weights(frozen, "seed=2"))


def test_a_centred_encoder_takes_the_mean_of_the_training_features_away(tmp_path: Path) -> None:
    run = make_run(tmp_path, frozen=True, centred=True)
    training = setup.training_set(run)
    v = torch.from_numpy(np.array(run.read(PLAIN_FEATURES)[training.positions]))
    seen = setup.new_net(run, training).encoder(v)
    torch.testing.assert_close(seen, v - v.mean(dim=0), atol=1e-4, rtol=0)
    assert "encoder.center" in run.read(STEP1)


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
