"""A baseline as a stage of a run: trained, kept and scored like everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro.bench.baselines import selection
from capro.bench.baselines.objectives import Referenced, SmallLoss
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.errors import ConfigError, did_you_mean
from capro.evaluate import metrics
from capro.method.own_settings import own_settings
from capro.method.references import PROVIDERS, provider
from capro.nets.backbones import FeatureBackbone
from capro.nets.siamese import Siamese
from capro.run import processes
from capro.run.artefacts import BASELINE_FIGURES, BELIEFS, STEP1, TEST_SCORES, VAL_SCORES
from capro.run.directory import Run
from capro.run.progress import SILENT, Watch
from capro.run.stage import Job, Stage, perform
from capro.stages.training import fit_once
from capro.train.batches import FeatureInputs, forward_plain
from capro.train.classifier_only import ClassifierOnly
from capro.train.objective import Objective
from capro.train.setup import TrainingSet, inputs_of, load_net, net_state, new_heads, new_net, training_set
from capro.train.web_labels import WebLabels

VERSION = 1  # raise it when a baseline changes: stored results of the old one are then not fresh
FOLDS = 5  # of cross-validated beliefs
VOTERS = 20  # neighbours of the k-NN vote
NCR_WEIGHT = 0.5  # alpha of NCR: half consistency, half labels
UNKNOWN_NOISE = 0.2  # of several labels, where confident counting has no form
NOISE_BOUNDS = (0.02, 0.5)  # an estimate outside is not believed


@dataclass
class Work:
    """What a baseline works with."""

    job: Job
    training: TrainingSet

    def __post_init__(self) -> None:
        self.run, self.ranks = self.job.run, self.job.ranks
        self.device: torch.device = self.ranks.accelerator.device

    def net(self, name: str = "step1") -> Siamese:
        """Fresh networks; another name is another start."""
        net = new_net(self.run, self.training)
        if name != "step1":
            heads = new_heads(self.run.settings, net.encoder.dim, self.training, name=name)
            net.heads.load_state_dict(heads.state_dict())
            net.reset_key()
        return net.to(self.device)

    def step1(self) -> Siamese:
        """The networks that step 1 made."""
        net = self.net()
        load_net(self.run, STEP1, net)
        return net

    def fit(self, objective: Objective, name: str, rows: NDArray[np.int64] | None = None) -> None:
        """Train with step 1's schedule, on all training rows or on some."""
        settings = self.run.settings
        positions = self.training.positions if rows is None else self.training.positions[rows]
        inputs, ids = inputs_of(self.run, objective.net.encoder), self.training.ids
        fit_once(
            self.job, objective, inputs, positions, settings.pretrain, name=name, seed=settings.seed, ids=ids
        )

    def features(self, positions: NDArray[np.int64], net: Siamese | None = None) -> NDArray[np.float32]:
        """Unaugmented features v of samples: cached ones, or of step 1's encoder (or another)."""
        encoder = (net or self.step1()).eval().encoder
        inputs = inputs_of(self.run, encoder)
        v = forward_plain(encoder, inputs, positions, width=encoder.dim, device=self.device)
        return v.cpu().numpy()

    def beliefs(self) -> NDArray[np.float32]:
        """What the stage ``beliefs`` left, (n, C)."""
        return np.array(self.run.read(BELIEFS))

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

        return selection.cross_validated(labels.cpu().numpy(), learn, count=FOLDS, seed=settings.seed)

    def probe(self, v: NDArray[np.float32], rows: NDArray[np.int64], name: str) -> torch.nn.Module:
        """A linear classifier on features v of all training rows, trained on some rows."""
        settings, training = self.run.settings, self.training
        heads = new_heads(settings, v.shape[1], training, name="probe")
        net = Siamese(FeatureBackbone(v.shape[1]), heads).to(self.device)
        labels = training.labels[torch.from_numpy(rows)]
        objective = ClassifierOnly(net, training.task(settings.net.tau), labels, self.ranks)
        inputs = FeatureInputs(v, v[None], v[None], np.arange(len(v)), seed=settings.seed)
        ids, seed = training.row_ids, settings.seed
        fit_once(self.job, objective, inputs, rows, settings.pretrain, name=name, seed=seed, ids=ids)
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
            lambda_prj=settings.pretrain.lambda_prj, weight=weight, seed=settings.seed,
            reference=provider(name, **settings.reference.model_dump()),
            teacher=work.step1() if name == "scc" else None,
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


def _settings(run: Run) -> dict[str, Any]:
    settings = run.settings
    return {
        "version": VERSION,
        "net": settings.net.model_dump(exclude={"runtime"}),
        "pretrain": settings.pretrain.model_dump(),
        "views": settings.views.model_dump(exclude={"cache_gb"}),
        "seed": settings.seed,
    }


def _believe(job: Job) -> dict[str, Any]:
    work = Work(job, training_set(job.run, job.ranks.accelerator.device))
    job.write(BELIEFS, work.cross_validate())
    return {"folds": FOLDS}


BELIEFS_STAGE = Stage(  # one stage for all who look at cross-validated probabilities
    "beliefs",
    _believe,
    settings=lambda run: {**_settings(run), "folds": FOLDS},
    reads=["scan", "classes", "pretrain"],
)


def baseline_stage(name: str, *, believes: bool) -> Stage:
    """The stage ``baselines/NAME``: scores of the test and val samples, and the model if it has one."""
    stage = f"baselines/{name}"

    def work(job: Job) -> dict[str, Any]:
        this = Work(job, training_set(job.run, job.ranks.accelerator.device))
        net, figures = BASELINES[name](this)
        manifest = manifest_of(job.run)
        for artefact, split in ((TEST_SCORES, "test"), (VAL_SCORES, "val")):
            positions = manifest.split(split)
            if len(positions):
                job.write(artefact, _scores(this, net, positions))
        if net is not None:
            job.write(STEP1, net_state(net))
        job.write(BASELINE_FIGURES, figures)
        test = manifest.split("test")
        if not len(test):
            return {}
        y = known_labels(manifest, test, this.training.classes)
        return metrics.headline(np.array(job.read(TEST_SCORES.of(stage))), y)

    def settings(run: Run) -> dict[str, Any]:
        own = own_settings(name, run.settings.reference.model_dump()) if name in PROVIDERS else {}
        return {**_settings(run), "name": name, **({"reference": own} if own else {})}

    reads = ["scan", "classes", "pretrain", *([BELIEFS_STAGE.name] if believes else [])]
    return Stage(stage, work, settings=settings, reads=reads)


def baseline(run: Run, name: str, *, watch: Watch = SILENT) -> dict[str, float]:
    """Train a baseline and score it on exactly the test samples."""
    if name not in BASELINES:
        raise ConfigError(f"no baseline '{name}'", hint=did_you_mean(name, BASELINES))
    if processes.count() > 1:  # their trainings exchange nothing
        raise ConfigError(
            f"baselines train in one process, {processes.count()} were launched",
            hint="start the command without torchrun or accelerate",
        )
    single = manifest_of(run).task == "single"  # with several labels the noise is not estimated
    believes = name == "cleanlab" or (name in BELIEVING and single)
    if believes:
        perform(run, BELIEFS_STAGE, watch=watch)
    stage = baseline_stage(name, believes=believes)
    perform(run, stage, watch=watch)
    return run.result(stage.name)


@torch.no_grad()
def _scores(work: Work, net: Siamese | None, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Probabilities of samples by the baseline's classifier, or by the vote of neighbours."""
    training = work.training
    if net is not None:
        v = torch.from_numpy(work.features(positions, net)).to(work.device)
        task = training.task(work.run.settings.net.tau)
        return task.probabilities(net.heads.classifier(v)).cpu().numpy()
    return selection.vote(
        work.features(training.positions),
        training.labels.cpu().numpy(),
        work.features(positions),
        len(training.classes),
        k=VOTERS,
    )
