"""A baseline as a stage of a run: trained, kept and scored like everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro import assemble, launched, progress
from capro.assemble import TrainingSet, manifest_of
from capro.baselines import selection
from capro.baselines.objectives import Referenced, SmallLoss
from capro.data.manifest import Manifest
from capro.errors import ConfigError, did_you_mean
from capro.nets.backbones import FeatureBackbone
from capro.nets.siamese import Siamese
from capro.pipeline.base import stage
from capro.pipeline.results import known_labels, score, scores_of
from capro.references import provider
from capro.runs import Run, read_array, write_array, write_json
from capro.train.batches import FeatureInputs, plain_batches
from capro.train.loop import fit
from capro.train.ranks import Ranks
from capro.train.steps import ClassifierOnly, Objective, WebLabels

VERSION = 1  # raise it when a baseline changes: stored results of the old one are then not fresh
FOLDS = 5  # of cross-validated beliefs
VOTERS = 20  # neighbours of the k-NN vote
NCR_WEIGHT = 0.5  # alpha of NCR: half consistency, half labels
UNKNOWN_NOISE = 0.2  # of several labels, where confident counting has no form
NOISE_BOUNDS = (0.02, 0.5)  # an estimate outside is not believed


@dataclass
class Work:
    """What a baseline works with."""

    run: Run
    manifest: Manifest
    training: TrainingSet
    ranks: Ranks
    bar: progress.Bar

    @property
    def device(self) -> torch.device:
        device: torch.device = self.ranks.accelerator.device
        return device

    def net(self, name: str = "step1") -> Siamese:
        """Fresh networks; another name is another start."""
        net = assemble.new_net(self.run, self.training)
        if name != "step1":
            heads = assemble.new_heads(self.run.settings, net.encoder.dim, self.training, name=name)
            net.heads.load_state_dict(heads.state_dict())
            net.reset_key()
        return net.to(self.device)

    def step1(self) -> Siamese:
        """The networks that step 1 made."""
        net = self.net()
        assemble.load_net(self.run.folder("pretrain") / "model.safetensors", net)
        return net

    def fit(self, objective: Objective, name: str, rows: NDArray[np.int64] | None = None) -> None:
        """Train with step 1's schedule, on all training rows or on some."""
        settings = self.run.settings
        positions = self.training.positions if rows is None else self.training.positions[rows]
        fit(
            objective,
            assemble.inputs_of(self.run, self.manifest, objective.net.encoder),
            positions,
            settings.pretrain,
            name=name,
            seed=settings.seed,
            ranks=self.ranks,
            ids=self.training.ids,
            bar=self.bar,
        )

    @torch.no_grad()
    def features(
        self, positions: NDArray[np.int64], net: Siamese | None = None
    ) -> NDArray[np.float32]:
        """Unaugmented features v of samples: cached ones, or of step 1's encoder (or another)."""
        net = (net or self.step1()).eval()
        inputs = assemble.inputs_of(self.run, self.manifest, net.encoder)
        parts = [
            net.encoder(x).float().cpu().numpy()
            for _, x in plain_batches(inputs, positions, size=256, device=self.device)
        ]
        return np.concatenate(parts)

    def beliefs(self) -> NDArray[np.float32]:
        """What the stage ``beliefs`` left, (n, C)."""
        return np.array(read_array(self.run.folder("beliefs") / "probabilities.npy"))

    def cross_validate(self) -> NDArray[np.float32]:
        """Cross-validated probabilities of a linear classifier on the features, (n, C)."""
        settings, training = self.run.settings, self.training
        v = self.features(training.positions)
        task, labels = training.task(settings.net.tau), training.labels

        def learn(seen: NDArray[np.int64], held: NDArray[np.int64]) -> NDArray[np.float32]:
            classifier = self.probe(v, seen, "cross-validation")
            with torch.no_grad():
                x = torch.from_numpy(v[held]).to(self.device)
                return task.probabilities(classifier(x)).cpu().numpy()

        return selection.cross_validated(
            labels.cpu().numpy(), learn, count=FOLDS, seed=settings.seed
        )

    def probe(self, v: NDArray[np.float32], rows: NDArray[np.int64], name: str) -> torch.nn.Module:
        """A linear classifier on features v of all training rows, trained on some rows."""
        settings, training = self.run.settings, self.training
        heads = assemble.new_heads(settings, v.shape[1], training, name="probe")
        net = Siamese(FeatureBackbone(v.shape[1]), heads).to(self.device)
        labels = training.labels[torch.from_numpy(rows)]
        fit(
            ClassifierOnly(net, training.task(settings.net.tau), labels, self.ranks),
            FeatureInputs(v, v[None], v[None], np.arange(len(v)), seed=settings.seed),
            rows,
            settings.pretrain,
            name=name,
            seed=settings.seed,
            ranks=self.ranks,
            ids=[training.ids[position] for position in training.positions],
            bar=self.bar,
        )
        return heads.classifier

    def noise(self) -> float:
        """Share of wrong labels, estimated without any truth."""
        if self.training.multi_label:
            return UNKNOWN_NOISE
        found = selection.estimate_noise(self.beliefs(), self.training.labels.cpu().numpy())
        return float(np.clip(found, *NOISE_BOUNDS))


Made = tuple[Siamese | None, dict[str, Any]]  # networks to score, and figures to keep


def _vanilla(work: Work) -> Made:
    return work.step1(), {}


def _linear(work: Work) -> Made:
    """On unaugmented features of the backbone as it was loaded; what is augmented is vanilla."""
    net = work.net()
    v = work.features(work.training.positions, net)
    classifier = work.probe(v, np.arange(len(v)), "linear probe")
    net.heads.classifier.load_state_dict(classifier.state_dict())
    return net, {}


def _referenced(name: str, weight: float = 1.0) -> Callable[[Work], Made]:
    def make(work: Work) -> Made:
        settings, net = work.run.settings, work.net()
        objective = Referenced(
            net, work.training.task(settings.net.tau), work.training.labels, work.ranks,
            lambda_prj=settings.pretrain.lambda_prj, reference=provider(name), weight=weight,
            seed=settings.seed, teacher=work.step1() if name == "scc" else None,
        )  # fmt: skip
        work.fit(objective, name)
        return net, {"weight": weight}

    return make


def _small_loss(nets: int) -> Callable[[Work], Made]:
    def make(work: Work) -> Made:
        settings, noise = work.run.settings, work.noise()
        net = work.net()
        objective = SmallLoss(
            net, work.net("second") if nets == 2 else None,
            work.training.task(settings.net.tau), work.training.labels, work.ranks,
            lambda_prj=settings.pretrain.lambda_prj, noise=noise,
            ramp=max(1, settings.pretrain.epochs // 2),
        )  # fmt: skip
        work.fit(objective, "co-teaching" if nets == 2 else "small-loss selection")
        return net, {"noise": noise}

    return make


def _cleanlab(work: Work) -> Made:
    labels = work.training.labels
    issues = selection.label_issues(work.beliefs(), labels.cpu().numpy())
    kept = np.flatnonzero(~issues)
    settings, net = work.run.settings, work.net()
    objective = WebLabels(
        net, work.training.task(settings.net.tau), labels[torch.from_numpy(kept)], work.ranks,
        lambda_prj=settings.pretrain.lambda_prj,
    )  # fmt: skip
    work.fit(objective, "cleanlab", kept)
    return net, {"removed": int(issues.sum())}


def _knn(_: Work) -> Made:
    return None, {"k": VOTERS}


BASELINES: dict[str, Callable[[Work], Made]] = {
    "vanilla": _vanilla,
    "linear": _linear,
    "smoothing": _referenced("smoothing"),
    "mixup": _referenced("mixup"),
    "bootstrap": _referenced("bootstrap"),
    "scc": _referenced("scc"),
    "ncr": _referenced("ncr", NCR_WEIGHT),
    "coteaching": _small_loss(2),
    "smallloss": _small_loss(1),
    "cleanlab": _cleanlab,
    "knn": _knn,
}


BELIEVING = ("coteaching", "smallloss", "cleanlab")  # they look at cross-validated beliefs


def _decides(run: Run) -> dict[str, Any]:
    settings = run.settings
    return {
        "version": VERSION,
        "net": settings.net.model_dump(),
        "pretrain": settings.pretrain.model_dump(),
        "views": settings.views.model_dump(exclude={"cache_gb"}),
        "seed": settings.seed,
    }


def beliefs(run: Run, *, bar: progress.Bar = progress.silent) -> None:
    """Cross-validated probabilities of the training samples: one stage for all who look at them."""
    manifest = manifest_of(run)

    def work(folder: Path) -> dict[str, Any]:
        ranks = assemble.ranks_of(run.settings)
        training = assemble.training_set(run, manifest, ranks.accelerator.device)
        found = Work(run, manifest, training, ranks, bar).cross_validate()
        write_array(folder / "probabilities.npy", found)
        return {"folds": FOLDS}

    decides = _decides(run) | {"folds": FOLDS}
    stage(run, "beliefs", work, settings=decides, inputs=["scan", "classes", "pretrain"])


def baseline(run: Run, name: str, *, bar: progress.Bar = progress.silent) -> dict[str, float]:
    """Train a baseline and score it on exactly the test samples; the stage ``baselines/NAME``.

    Leaves ``test.npy`` (probabilities of the test samples, and of the val samples in ``val.npy``) and
    ``model.safetensors`` where it has one.
    """
    if name not in BASELINES:
        raise ConfigError(f"no baseline '{name}'", hint=did_you_mean(name, BASELINES))
    if launched.count() > 1:  # their trainings exchange nothing
        raise ConfigError(
            f"baselines train in one process, {launched.count()} were launched",
            hint="start the command without torchrun or accelerate",
        )
    settings, manifest = run.settings, manifest_of(run)

    def work(folder: Path) -> dict[str, Any]:
        ranks = assemble.ranks_of(settings)
        training = assemble.training_set(run, manifest, ranks.accelerator.device)
        this = Work(run, manifest, training, ranks, bar)
        net, figures = BASELINES[name](this)
        if net is not None:
            assemble.save_net(folder / "model.safetensors", net)
        parts = {split: manifest.split(split) for split in ("test", "val")}
        for split, positions in parts.items():
            if len(positions):
                write_array(folder / f"{split}.npy", _scores(this, folder, net, positions))
        write_json(folder / "figures.json", figures)
        if not len(parts["test"]):
            return {}
        y = known_labels(manifest, parts["test"], training.classes)
        return dict(score(np.load(folder / "test.npy", allow_pickle=False), y))

    inputs = ["scan", "classes", "pretrain"]
    if name == "cleanlab" or (name in BELIEVING and manifest.task == "single"):
        beliefs(run, bar=bar)
        inputs.append("beliefs")
    stage(run, f"baselines/{name}", work, settings=_decides(run) | {"name": name}, inputs=inputs)
    return dict((run.finished(f"baselines/{name}") or {})["result"])


def _scores(
    work: Work, folder: Path, net: Siamese | None, positions: NDArray[np.int64]
) -> NDArray[np.float32]:
    training = work.training
    if net is not None:
        return scores_of(work.run, work.manifest, training, folder / "model.safetensors", positions)
    return selection.vote(
        work.features(training.positions),
        training.labels.cpu().numpy(),
        work.features(positions),
        len(training.classes),
        k=VOTERS,
    )
