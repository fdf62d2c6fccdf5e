"""Networks from settings."""

from __future__ import annotations

import torch

from capro import config
from capro.train import setup


def weights(*overrides: str) -> torch.Tensor:
    settings = config.load(overrides=["net.backbone=small", "views.size=16", *overrides])
    return next(setup.pretrained(settings).parameters())


def test_a_learning_encoder_starts_by_the_seed() -> None:
    assert torch.equal(weights("seed=1"), weights("seed=1"))
    assert not torch.equal(weights("seed=1"), weights("seed=2"))


def test_a_frozen_encoder_is_the_same_for_every_seed() -> None:
    frozen = "net.mode=frozen"
    assert torch.equal(weights(frozen, "seed=1"), weights(frozen, "seed=2"))
