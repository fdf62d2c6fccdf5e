"""Tiny trainings for tests: a few samples, a network of a few weights, one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import TrainSettings, ViewSettings
from capro.core.losses import positive_weights
from capro.core.references import provider
from capro.models.backbones import Backbone, FeatureBackbone, SmallResNet
from capro.models.heads import Heads
from capro.models.siamese import Dictionary, Siamese
from capro.pipeline.ranks import Ranks
from capro.train.batches import Batch, BatchPlan, FeatureInputs, ImageInputs, Inputs, load_batches
from capro.train.judgement import Judge
from capro.train.loop import Training
from capro.train.prototype_learning import PrototypeLearning
from capro.train.tasks import MultiLabelTask, SingleLabelTask, Task

WIDTH, EMBEDDING, TAU = 8, 6, 0.2
CPU = torch.device("cpu")


def one_rank() -> Ranks:
    from accelerate import Accelerator

    return Ranks(Accelerator(cpu=True))


class ToyPixels:
    """Images of noise around a colour of their class."""

    def __init__(self, labels: NDArray[np.int64]) -> None:
        rng = np.random.default_rng(5)
        colours = rng.integers(40, 216, size=(labels.max() + 1, 1, 1, 3))
        noise = rng.integers(-40, 40, size=(len(labels), 16, 16, 3))
        self._images = (colours[labels] + noise).astype(np.uint8)

    channels = 3

    def pixels(self, position: int) -> NDArray[np.uint8]:
        pixels: NDArray[np.uint8] = self._images[position]
        return pixels


@dataclass
class Toy:
    """A training set with its network; everything is a function of the arguments."""

    mode: str = "frozen"
    multi: bool = False
    n: int = 22
    classes: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    views: int = 2
    batch_norm: bool = True

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)
        hidden = np.arange(self.n) % self.classes
        centres = 2 * rng.standard_normal((self.classes, WIDTH)).astype(np.float32)
        shape = (self.views, self.n, WIDTH)
        self.plain = centres[hidden] + rng.standard_normal((self.n, WIDTH)).astype(np.float32)
        self.query = self.plain + 0.3 * rng.standard_normal(shape).astype(np.float32)
        self.key = self.plain + 0.3 * rng.standard_normal(shape).astype(np.float32)
        noisy = np.where(np.arange(self.n) % 5 == 4, (hidden + 1) % self.classes, hidden)
        self.positions = np.arange(self.n)
        self.ids = [f"s{i}" for i in range(self.n)]
        if self.multi:
            member = np.eye(self.classes, dtype=np.int64)[noisy]
            member[::4, 0] = 1
            self.labels = torch.from_numpy(member)
            self.anchored = torch.zeros_like(self.labels, dtype=torch.bool)
            for c in range(self.classes):
                self.anchored[torch.nonzero(self.labels[:, c])[:2, 0], c] = True
        else:
            self.labels = torch.from_numpy(noisy.astype(np.int64))
            self.anchored = torch.zeros(self.n, dtype=torch.bool)
            for c in range(self.classes):
                self.anchored[torch.nonzero(self.labels == c)[:2, 0]] = True
        self.hidden = hidden

    @property
    def train(self) -> TrainSettings:
        values = {
            "epochs": 3, "batch_size": 8, "lr": 0.1, "warmup_epochs": 1, "frozen_epochs": 1,
            "correct_after": 1, "gamma": 0.6, "queue": 16, "key_momentum": 0.9,
            "prototype_momentum": 0.8,
        }  # fmt: skip
        return TrainSettings(**{**values, **self.settings})

    @property
    def task(self) -> Task:
        if not self.multi:
            return SingleLabelTask(self.classes, TAU)
        return MultiLabelTask(self.classes, TAU, positive_weights((self.labels > 0).sum(dim=0), self.n))

    def inputs(self) -> Inputs:
        if self.mode == "frozen":
            return FeatureInputs(self.plain, self.query, self.key, self.positions, seed=0)
        views = ViewSettings(size=16, crop_scale=0.5)
        return ImageInputs(ToyPixels(self.hidden), self.backbone(), views, seed=0)  # type: ignore[arg-type]

    def backbone(self) -> Backbone:
        if self.mode == "frozen":
            return FeatureBackbone(WIDTH)
        torch.manual_seed(1)
        if not self.batch_norm:
            body = torch.nn.Sequential(
                torch.nn.Conv2d(3, WIDTH, 4, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                torch.nn.Flatten(),
            )  # fmt: skip
            return Backbone(body, name="tiny", dim=WIDTH, size=16)
        return Backbone(SmallResNet(16, widths=(4, WIDTH)), name="tiny", dim=WIDTH, size=16)

    def net(self) -> Siamese:
        backbone = self.backbone()
        torch.manual_seed(2)
        heads = Heads(WIDTH, EMBEDDING, self.classes, tau=TAU, multi_label=self.multi)
        return Siamese(backbone, heads)

    def judge(self) -> Judge:
        return Judge(self.task, self.train)

    def objective(self, ranks: Ranks | None = None, net: Siamese | None = None) -> PrototypeLearning:
        chosen = self.train
        reference = provider(
            chosen.reference, tau=TAU, alpha=chosen.alpha, to_classifier=chosen.bts_classifier
        )
        return PrototypeLearning(
            net or self.net(), self.judge(), reference, self.labels, self.anchored, self.inputs(),
            self.positions, ranks or one_rank(), tau=TAU, seed=0,
        )  # fmt: skip

    def fit(self, objective: Any, ranks: Ranks | None = None, **options: Any) -> list[Any]:
        options = {"name": "toy", "seed": 3, "ids": self.ids, **options}
        schedule = options.pop("schedule", self.train)
        inputs = options.pop("inputs", None) or self.inputs()
        positions = options.pop("positions", self.positions)
        return Training(objective, inputs, positions, schedule, ranks=ranks or one_rank(), **options).fit()

    def trained(self, ranks: Ranks | None = None, **options: Any) -> dict[str, Any]:
        """Everything that a training ends with, to be compared to the bit."""
        ranks = ranks or one_rank()
        objective = self.objective(ranks)
        history = self.fit(objective, ranks, **options)
        return {"history": history, **everything(objective)}


def batches(toy: Toy, epoch: int, keys: bool = True) -> list[Batch]:
    return list(
        load_batches(
            toy.inputs(), BatchPlan(toy.n, 8, seed=3), toy.positions, epoch=epoch, first=0, keys=keys,
            rank=0, ranks=1, device=CPU,
        )
    )  # fmt: skip


def ordered(queue: Dictionary) -> Tensor:
    """What a dictionary holds, oldest first."""
    full = len(queue) == queue.size
    return queue.store.roll(-int(queue.pointer), dims=0) if full else queue.keys.clone()


def everything(objective: Any) -> dict[str, Tensor]:
    tensors = {f"net.{name}": value for name, value in objective.net.state_dict().items()}
    tensors |= {f"objective.{name}": value for name, value in objective.state().items()}
    return {name: value.detach().clone() for name, value in tensors.items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Bit for bit."""
    if a.keys() != b.keys():
        return False
    return all(
        torch.equal(a[name], b[name]) if isinstance(a[name], Tensor) else a[name] == b[name] for name in a
    )
