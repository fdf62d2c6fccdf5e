"""Shared by the accuracy benchmarks: features once, then any training on them in seconds.

Features (EfficientNet-Lite0 at 128 px, two query and two key views) are computed once per data set
into ``runs/bench-NAME`` and shared by all seeds and variants; a seed decides weights, order, views
shown and random anchors. The test set is looked at once, after the last epoch; ``train_truth`` only
measures and makes the oracles.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from capro.pipeline.results import score
from capro.train.steps import ClassifierOnly, Prototypes, WebLabels
from torch import Tensor

from capro import config
from capro.config import Schedule, Settings, TrainSettings
from capro.data.manifest import manifest_of
from capro.evaluate.truth import load_truth, membership
from capro.graph.smooth import enhance
from capro.method.anchors import Anchors, match
from capro.method.text_evidence import TextEvidence
from capro.nets.backbones import FeatureBackbone
from capro.nets.siamese import Siamese
from capro.run.artefacts import read_array
from capro.run.directory import Run
from capro.run.ranks import ranks_of
from capro.stages import PLAN
from capro.text.classes import classes_of
from capro.train import setup
from capro.train.batches import FeatureInputs, plain_batches
from capro.train.judgement import Verdicts, judge
from capro.train.loop import fit

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
RUNS = Path(__file__).resolve().parents[1] / "runs"
TRUTH = {
    "queryweb32": "train_truth.parquet",
    "cococap64": "train_truth.parquet",
    "shopweb64": "train_truth.csv",
}


def preset_for(name: str) -> str:
    """The preset that fits a data set's task."""
    return "small-multi" if name == "cococap64" else "small"


@dataclass(frozen=True)
class Bench:
    """A data set with its frozen features and truth."""

    name: str
    overrides: tuple[str, ...] = ()
    preset: str = "small"

    @cached_property
    def run(self) -> Run:
        """The run directory with manifest, classes, features and texts."""
        source = SHARED / self.name
        if not source.is_dir():
            sys.exit(f"error: {source} is not there")
        overrides = [f"data.source={source}", f"data.classes={source / 'classes.yaml'}"]
        settings = config.load(preset_name=self.preset, overrides=[*overrides, *self.overrides])
        run = Run.create(RUNS / f"bench-{self.name}", settings)
        PLAN.do(run, "scan")
        PLAN.do(run, "classes")
        PLAN.do(run, "pixels")
        PLAN.do(run, "features")
        PLAN.do(run, "embed")
        return run

    @property
    def settings(self) -> Settings:
        return self.run.settings

    @cached_property
    def manifest(self) -> Any:
        return manifest_of(self.run)

    @cached_property
    def training(self) -> setup.TrainingSet:
        return setup.training_set(self.run)

    @cached_property
    def member(self) -> Any:
        """True labels, (n, C) bool."""
        truth = load_truth(SHARED / self.name / TRUTH[self.name], self.manifest)
        return membership(truth, self.training.classes)

    @cached_property
    def ambiguous(self) -> Any:
        return np.array([bool(spec.ambiguous) for spec in classes_of(self.run)])

    @cached_property
    def test(self) -> tuple[Any, Any]:
        """Manifest positions and labels of what is scored: the test split."""
        test = self.manifest.split("test")
        return test, setup.encode_labels(self.manifest, test, self.training.classes).numpy()

    def inputs(self, seed: int) -> FeatureInputs:
        """Cached features; the seed decides which view a sample shows in an epoch."""
        folder = self.run.folder("features")
        rows = np.full(len(self.manifest.samples), -1, dtype=np.int64)
        train = self.manifest.split("train")
        rows[train] = np.arange(len(train))
        arrays = (np.array(read_array(folder / f"{name}.npy")) for name in ("plain", "query", "key"))
        return FeatureInputs(*arrays, rows, seed=seed)

    def embedded(self, name: str) -> Any:
        return read_array(self.run.folder("embed") / f"{name}.npy")

    def enhanced(self, enhancer: str = "reciprocal") -> Any:
        texts, k = self.embedded("texts"), self.settings.match.k
        if enhancer == "none":
            return texts
        return enhance(self.embedded("visual"), texts, enhancer=enhancer, k=k).texts  # type: ignore[arg-type]

    @cached_property
    def witness(self) -> TextEvidence | None:
        """What the texts say in the label rule; None for several labels."""
        if self.training.multi_label:
            return None
        return TextEvidence.fitted(self.enhanced(), self.embedded("prototypes"), self.training.labels.numpy())

    def anchors(self, *, seed: int = 0, mode: str = "text", enhancer: str = "reciprocal",
                top_k: int | None = None, contrast: float | None = None) -> Anchors:  # fmt: skip
        """Anchors by matching, or at random."""
        chosen = self.settings.match
        texts = self.enhanced(enhancer if mode == "text" else "none")
        ids = [self.training.ids[position] for position in self.training.positions]
        return match(
            texts, self.embedded("prototypes"), self.training.labels.numpy(), k=chosen.k,
            top_k=top_k or chosen.top_k, ids=ids, mode=mode, seed=seed,  # type: ignore[arg-type]
            contrast=0.0 if self.training.multi_label else chosen.contrast if contrast is None else contrast,
        )  # fmt: skip

    def anchored(self, anchors: Anchors) -> Tensor:
        """Anchors in the shape of the labels."""
        mask = torch.zeros_like(self.training.labels, dtype=torch.bool)
        rows = torch.from_numpy(anchors.sample.astype(np.int64))
        if self.training.multi_label:
            mask[rows, torch.from_numpy(anchors.label.astype(np.int64))] = True
        else:
            mask[rows] = True
        return mask


@dataclass(frozen=True)
class HeldOut(Bench):
    """Training samples instead of the test set, with their web labels: for choosing settings.

    Several labels: a tenth, at random. One label: a third of a pool whose web labels are mostly true,
    since those of the others are wrong in the same way as those trained on, and whoever believes the
    wrong sense would look good. The pool is `agree`, samples whose own text is nearer to their class's
    text than to any other's, or `fit`, the 75 of each class whose texts fit best (purer, and too much
    like the anchors: heads trained on anchors alone look nearly as good as the whole method).

    Held-out samples lack the labels that all samples lack, so they cannot tell who copes with that.
    ``thin`` takes more labels away, from those trained on alone: what copes with it looks better.
    """

    pool: str = "agree"
    fold: int = 0  # which tenth or third
    thin: float = 0.0  # share of the labels trained on that are taken away; several labels only

    @cached_property
    def _split(self) -> tuple[Any, Any]:
        count = len(self.whole.positions)
        share, candidates = (10, np.arange(count)) if self.whole.multi_label else (3, self._pool())
        order = np.random.default_rng(0).permutation(candidates)
        size = len(candidates) // share
        held = np.sort(order[self.fold * size : (self.fold + 1) * size])
        return np.setdiff1d(np.arange(count), held), held

    def _pool(self) -> Any:
        everyone = Bench(self.name, self.overrides, self.preset)
        if self.pool == "fit":
            return np.unique(everyone.anchors(top_k=75).sample)
        texts = np.asarray(everyone.embedded("texts"))
        nearest = (texts @ np.asarray(everyone.embedded("prototypes")).T).argmax(axis=1)
        return np.flatnonzero(texts.any(axis=1) & (nearest == self.whole.labels.numpy()))

    @cached_property
    def whole(self) -> setup.TrainingSet:
        return setup.training_set(self.run)

    @cached_property
    def training(self) -> setup.TrainingSet:
        rows, whole = self._split[0], self.whole
        labels = whole.labels[rows]
        if self.thin:
            gone = torch.rand(labels.shape, generator=torch.Generator().manual_seed(self.fold))
            labels = torch.where(gone < self.thin, 0, labels)
        return replace(whole, positions=whole.positions[rows], labels=labels)

    @cached_property
    def test(self) -> tuple[Any, Any]:
        rows = self._split[1]
        return self.whole.positions[rows], self.whole.labels[rows].numpy()

    def embedded(self, name: str) -> Any:
        found = super().embedded(name)
        return found if name == "prototypes" else found[self._split[0]]


class Trial:
    """One seed on one data set: trainings that share inputs and ranks."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.seed = bench, seed
        self.settings = bench.settings.model_copy(update={"seed": seed})
        self.inputs = bench.inputs(seed)
        self.ranks = ranks_of(self.settings)
        self.training = bench.training
        self.task = self.training.task(self.settings.net.tau)

    def net(self, name: str = "step1") -> Siamese:
        dim = self.bench.embedded("visual").shape[1]
        return Siamese(FeatureBackbone(dim), setup.new_heads(self.settings, dim, self.training, name=name))

    def fit(self, objective: Any, rows: Any, schedule: Schedule, name: str) -> Any:
        return fit(
            objective, self.inputs, self.training.positions[rows], schedule, name=name,
            seed=self.seed, ranks=self.ranks, ids=self.training.ids,
        )  # fmt: skip

    def web(self, labels: Tensor | None = None, schedule: Schedule | None = None,
            name: str = "step1") -> Siamese:  # fmt: skip
        """L_cls + L_prj on given labels (web labels by default); label -1 is left out."""
        labels = self.training.labels if labels is None else labels
        rows = torch.nonzero(~self.task.out(labels)).flatten().numpy()
        net = self.net(name)
        objective = WebLabels(net, self.task, labels[rows], self.ranks,
                              lambda_prj=self.settings.pretrain.lambda_prj)  # fmt: skip
        self.fit(objective, rows, schedule or self.settings.pretrain, "web")
        return net

    def anchor_heads(self, anchored: Tensor, train: TrainSettings) -> Siamese:
        """Heads trained on the anchors alone."""
        member = anchored if anchored.ndim == 1 else anchored.any(dim=1)
        labels = torch.where(member if anchored.ndim == 1 else member[:, None], self.training.labels, -1)
        schedule = train.model_copy(update={"epochs": train.anchor_epochs, "warmup_epochs": 0})
        return self.web(labels, schedule, name="anchors")

    def capro(self, start: Siamese, anchored: Tensor, train: TrainSettings) -> Siamese:
        """Steps 2 and 3 from given heads."""
        net, verdicts = self.step2(start, anchored, train)
        self.finetune(net, torch.from_numpy(verdicts.labels))
        return net

    def step2(self, start: Siamese, anchored: Tensor, train: TrainSettings) -> tuple[Siamese, Verdicts]:
        """Step 2 from given heads, and what it makes of the labels."""
        net = self.net()
        net.heads.load_state_dict(start.heads.state_dict())
        net.reset_key()
        rows = np.arange(len(self.training.positions))
        witness = self.bench.witness if train.text_weight else None
        objective = Prototypes(
            net, self.task, self.training.labels, anchored, self.inputs, self.training.positions,
            train, self.ranks, tau=self.settings.net.tau, seed=self.seed, witness=witness,
        )  # fmt: skip
        self.fit(objective, rows, train, "step 2")
        verdicts = judge(net, self.task, objective.prototypes, self.training.labels, anchored,
                         self.inputs, self.training.positions, train, witness)  # fmt: skip
        return net, verdicts

    def finetune(self, net: Siamese, labels: Tensor, **changed: Any) -> None:
        """Step 3 on given labels, as its settings say but for what is changed."""
        kept = torch.nonzero(~self.task.out(labels)).flatten().numpy()
        settings = self.settings.finetune.model_copy(update=changed)
        objective = ClassifierOnly.by(
            settings, net, self.task, labels[kept], self.ranks, self.inputs,
            self.training.positions[kept],
        )  # fmt: skip
        self.fit(objective, kept, settings, "step 3")
        objective.finish()

    @torch.no_grad()
    def test(self, net: Siamese) -> dict[str, float]:
        """Figures on the test set; ``macro`` is the mean over classes of their top-1."""
        net.eval()
        test, labels = self.bench.test
        parts = [
            self.task.probabilities(net(x).query.p).numpy()
            for _, x in plain_batches(self.inputs, test, size=1024, device=torch.device("cpu"))
        ]
        scores = np.concatenate(parts)
        found = score(scores, labels)
        if labels.ndim == 1:
            hit = scores.argmax(axis=1) == labels
            found["macro"] = float(np.mean([hit[labels == c].mean() for c in np.unique(labels)]))
        return found


def oracle_labels(bench: Bench, *, relabel: bool) -> Tensor:
    """True labels (relabel), or web labels where they are true and -1 elsewhere."""
    labels, member = bench.training.labels, torch.from_numpy(bench.member)
    if bench.training.multi_label:
        return member.long()
    if not relabel:
        right = member[torch.arange(len(labels)), labels]
        return torch.where(right, labels, -1)
    return torch.where(member.any(dim=1), member.long().argmax(dim=1), -1)
