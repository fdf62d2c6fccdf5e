"""Networks from settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from capro import config
from capro.pipeline.artefacts import PLAIN_FEATURES, STEP1
from capro.train import setup
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
