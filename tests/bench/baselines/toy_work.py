"""A baseline's work on made-up features: what it learns can be compared with the truth, in a second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro import config
from capro.bench.baselines.work import Learned, Verified, Work
from capro.models.backbones import FeatureBackbone
from capro.models.heads import Heads
from capro.models.siamese import Siamese
from capro.pipeline import progress
from capro.pipeline.artefacts import KEY_FEATURES
from capro.train.batches import Batch, FeatureInputs
from capro.train.loop import Training
from capro.train.objectives import WebLabels
from capro.train.setup import TrainingSet
from tests.train.toys import one_rank

CLASSES, WIDTH = 4, 48


def features(truth: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Separable in many dimensions, so that noise can be learnt by heart, (n, WIDTH)."""
    v = rng.normal(size=(len(truth), WIDTH))
    v[:, :CLASSES] += 4 * np.eye(CLASSES)[truth]
    return v.astype(np.float32)


class ToyWork(Work):
    """Samples of CLASSES classes, ``noise`` of them with another class's label; frozen mode.

    Args:
        n: Samples.
        noise: Share of wrong labels.
        seed: Of everything.
        several: The labels as (n, C) membership.
        verified: Samples whose label was verified.
        overrides: Settings.
    """

    def __init__(
        self, n: int = 240, noise: float = 0.4, *, seed: int = 0, several: bool = False, verified: int = 0,
        overrides: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.truth = rng.integers(0, CLASSES, n)
        self.v = features(self.truth, rng)
        labels = self.truth.copy()
        wrong = rng.permutation(n)[: round(noise * n)]
        labels[wrong] = (self.truth[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
        self.right = labels == self.truth
        given = torch.from_numpy(np.eye(CLASSES, dtype=np.int64)[labels] if several else labels)
        names = [f"class{c}" for c in range(CLASSES)]
        self.training = TrainingSet(np.arange(n), [str(i) for i in range(n)], names, given)
        settings = config.load(
            overrides=[
                f"seed={seed}", "net.mode=frozen", "net.embedding_dim=8", "net.tau=0.2",
                "pretrain.epochs=16", "pretrain.batch_size=48", "pretrain.lr=0.05",
                "pretrain.warmup_epochs=0", "train.queue=128", "train.key_momentum=0.9",
                "train.prototype_momentum=0.9", *(["baselines.verified=made-up.csv"] if verified else []),
                *overrides,
            ]
        )  # fmt: skip
        self.artefacts: dict[str, Any] = {KEY_FEATURES.file: self._views()}
        self.run = SimpleNamespace(  # type: ignore[assignment]
            settings=settings, read=lambda artefact: self.artefacts[artefact.file]
        )
        self.ranks, self.device = one_rank(), torch.device("cpu")
        self._noise, self._verified = noise, np.sort(rng.permutation(n)[:verified])
        self.job = SimpleNamespace(bar=progress.silent)  # type: ignore[assignment]

    def _views(self) -> NDArray[np.float32]:
        noise = np.random.default_rng(1).normal(size=(2, *self.v.shape))
        return (self.v + 0.1 * noise).astype(np.float32)

    def net(self, name: str = "step1") -> Siamese:
        torch.manual_seed(self.run.settings.seed + (name != "step1"))
        several = self.training.multi_label
        return Siamese(FeatureBackbone(WIDTH), Heads(WIDTH, 8, CLASSES, tau=0.2, multi_label=several))

    def step1(self) -> Siamese:
        net = self.net()
        self.fit(WebLabels(net, self.task, self.training.labels, self.ranks, lambda_prj=1.0), "vanilla")
        return net

    def inputs(self, net: Siamese) -> FeatureInputs:
        views = self.artefacts[KEY_FEATURES.file]
        return FeatureInputs(self.v, self.v[None], views, np.arange(len(self.v)), seed=0)

    def fit(self, objective, name, rows=None, *, inputs=None, schedule=None):  # type: ignore[no-untyped-def]
        settings, positions = self.run.settings, self.training.positions
        Training(
            objective, inputs or self.inputs(objective.net), positions if rows is None else positions[rows],
            schedule or settings.pretrain, name=name, seed=settings.seed, ranks=self.ranks,
            ids=self.training.ids,
        ).fit()  # fmt: skip

    def features(self, positions: NDArray[np.int64], net: Siamese | None = None) -> NDArray[np.float32]:
        return self.v[positions]

    def verified(self) -> Verified:
        return Verified(self._verified, self.right[self._verified])

    def noise(self) -> float:
        return self._noise

    def accuracy(self, made: Learned | Siamese) -> float:
        """On clean test samples; several labels: of the most probable class."""
        net = made if isinstance(made, Siamese) else made[0]
        assert net is not None
        rng = np.random.default_rng(self.run.settings.seed + 50)
        truth = rng.integers(0, CLASSES, 400)
        with torch.no_grad():
            said = net.eval()(torch.from_numpy(features(truth, rng))).query.p.argmax(dim=1).numpy()
        return float((said == truth).mean())


def batch(v: NDArray[np.float32], epoch: int) -> Batch:
    """All samples in one batch, without keys."""
    everyone = np.arange(len(v))
    return Batch(epoch, 0, everyone, slice(0, len(v)), torch.from_numpy(v), None, everyone)


def showing(shown: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float32]:
    """Features of pictures that show several classes, (n, CLASSES) -> (n, WIDTH)."""
    v = rng.normal(size=(len(shown), WIDTH))
    v[:, :CLASSES] += 4 * shown
    return v.astype(np.float32)


def f1_of(net: Siamese, v: NDArray[np.float32], shown: NDArray[np.bool_]) -> float:
    """F1 of all classes above one half against those that are shown."""
    with torch.no_grad():
        said = net.eval()(torch.from_numpy(v)).query.p.sigmoid().numpy() > 0.5
    return float(2 * (said & shown).sum() / (said.sum() + shown.sum()))


def separation(scores: NDArray[Any], right: NDArray[np.bool_]) -> float:
    """Share of pairs of a right and a wrong label in which the right one has the higher score; 0.5 is chance."""
    a, b = scores[right][:, None], scores[~right][None]
    return float((a > b).mean() + 0.5 * (a == b).mean())
