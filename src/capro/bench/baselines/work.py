"""What a baseline works with: training rows, networks, the schedule of step 1, features, beliefs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.config import Schedule
from capro.data.labels import kind_of
from capro.data.manifest import manifest_of
from capro.models.backbones import FeatureBackbone
from capro.models.siamese import Siamese
from capro.pipeline import progress
from capro.pipeline.artefacts import BASELINE_HISTORY, BELIEFS, STEP1
from capro.pipeline.checksums import seed_for
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.results.truth import read_truth
from capro.stages.training import fit_step
from capro.stores import local_path
from capro.train.batches import FeatureInputs, Inputs, forward_plain
from capro.train.objectives import ClassifierOnly, Objective
from capro.train.setup import TrainingSet, inputs_of, load_net, new_heads, new_net
from capro.train.tasks import Task

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

FOLDS = 5  # of cross-validated beliefs
UNKNOWN_NOISE = 0.2  # of multi-label data, for which confident counting has no form
NOISE_BOUNDS = (0.02, 0.5)  # an estimate outside is not believed

Learned = tuple[Siamese | None, dict[str, Any]]  # networks to score, and figures to keep


class Verified(NamedTuple):
    """Training rows that a person has looked at."""

    rows: NDArray[np.int64]  # (m,), ascending
    right: NDArray[np.bool_]  # (m,), whether the web label is true


def verified_labels(run: Run) -> list[tuple[str, ...] | None]:
    """Ground truth of the training rows by ``baselines.verified``; None where nobody has looked."""
    path = local_path(run.settings.baselines.verified or "", "baselines.verified")
    return read_truth(path, manifest_of(run)).labels


@dataclass
class Work:
    """What a baseline works with."""

    job: Job
    training: TrainingSet

    def __post_init__(self) -> None:
        self.run, self.ranks = self.job.run, self.job.ranks
        self.device: torch.device = self.ranks.accelerator.device

    def net(self, name: str = "step1") -> Siamese:
        """Fresh networks; another name is another start: of the heads, and of an encoder with random weights."""
        return new_net(self.run, self.training, name).to(self.device)

    def step1(self) -> Siamese:
        """The networks that step 1 made."""
        net = self.net()
        load_net(self.run, STEP1, net)
        return net

    @property
    def task(self) -> Task:
        """Losses that fit the labels."""
        return self.training.task(self.run.settings.net.tau)

    def inputs(self, net: Siamese) -> Inputs:
        """Where the input of networks comes from."""
        return inputs_of(self.run, net.encoder)

    def fit(
        self,
        objective: Objective,
        name: str,
        rows: NDArray[np.int64] | None = None,
        *,
        inputs: Inputs | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Train with step 1's schedule and inputs, or with others, on all training rows or on some.

        Goes on at its last checkpoint where it was stopped: what the baseline did before is done again, and must
        end the same. ``name`` is for messages, and another one for each training of a baseline.
        """
        settings, ids = self.run.settings, self.training.ids
        positions = self.training.positions if rows is None else self.training.positions[rows]
        source, plan = inputs or self.inputs(objective.net), schedule or settings.pretrain
        history = fit_step(
            self.job, objective, source, positions, plan, name=name, seed=settings.seed, ids=ids, within=name
        )
        self.job.write(BASELINE_HISTORY, history)

    def features(self, positions: NDArray[np.int64], net: Siamese | None = None) -> NDArray[np.float32]:
        """Unaugmented features v of samples: cached ones, or of step 1's encoder (or another)."""
        encoder = (net or self.step1()).eval().encoder
        inputs = inputs_of(self.run, encoder)
        v = forward_plain(encoder, inputs, positions, width=encoder.dim, device=self.device)
        return v.cpu().numpy()

    @torch.no_grad()
    def believed(self, net: Siamese, positions: NDArray[np.int64]) -> Tensor:
        """What a network's classifier believes of unaugmented pictures, (n, C)."""
        v = torch.from_numpy(self.features(positions, net)).to(self.device)
        return self.task.probabilities(net.heads.classifier(v))

    def second_schedule(self) -> Schedule:
        """Step 1's schedule for networks that have learnt already: half of the rate, no warm-up."""
        first = self.run.settings.pretrain
        return first.model_copy(update={"lr": first.lr / 2, "warmup_epochs": 0})

    def beliefs(self) -> NDArray[np.float32]:
        """What the stage ``beliefs`` left, (n, C)."""
        return np.array(self.run.read(BELIEFS))

    def cross_validate(self) -> NDArray[np.float32]:
        """Cross-validated probabilities of a linear classifier on the features, (n, C)."""
        settings, training = self.run.settings, self.training
        v = self.features(training.positions)

        def learn(seen: NDArray[np.int64], held: NDArray[np.int64]) -> NDArray[np.float32]:
            classifier = self.probe(v, seen, "cross-validation")
            with torch.no_grad():
                x = torch.from_numpy(v[held]).to(self.device)
                return self.task.probabilities(classifier(x)).cpu().numpy()

        return cross_validated(training.labels.cpu().numpy(), learn, count=FOLDS, seed=settings.seed)

    def probe(self, v: NDArray[np.float32], rows: NDArray[np.int64], name: str) -> torch.nn.Module:
        """A linear classifier on features v of all training rows, trained on some rows."""
        settings, training = self.run.settings, self.training
        heads = new_heads(settings, v.shape[1], training, name="probe")
        net = Siamese(FeatureBackbone(v.shape[1]), heads).to(self.device)
        labels = training.labels[torch.from_numpy(rows)]
        objective = ClassifierOnly(net, self.task, labels, self.ranks)
        inputs = FeatureInputs(v, v[None], v[None], np.arange(len(v)), seed=settings.seed)
        ids, seed = training.row_ids, settings.seed
        fit_step(
            self.job, objective, inputs, rows, settings.pretrain, name=name, seed=seed, ids=ids, within=None
        )
        return heads.classifier

    def verified(self) -> Verified:
        """The verified training rows, single-label."""
        known, training = verified_labels(self.run), self.training
        rows = np.array([row for row, names in enumerate(known) if names is not None], dtype=np.int64)
        web = [training.classes[label] for label in training.labels[torch.from_numpy(rows)].tolist()]
        right = [name in (known[row] or ()) for row, name in zip(rows.tolist(), web, strict=True)]
        return Verified(rows, np.array(right, dtype=bool))

    def noise(self) -> float:
        """Share of wrong labels, estimated without any ground truth."""
        if self.training.multi_label:
            return UNKNOWN_NOISE
        estimate = estimate_noise(self.beliefs(), self.training.labels.cpu().numpy())
        return float(np.clip(estimate, *NOISE_BOUNDS))


# --- parts of the work ----------------------------------------------------------------------------


def folds(labels: Labels, count: int, *, seed: int) -> NDArray[np.int64]:
    """Fold of each sample, (n,): every class is dealt out evenly; multi-label: every sample.

    >>> sorted(np.bincount(folds(np.array([0, 0, 1, 1]), 2, seed=0)).tolist())
    [2, 2]
    """
    rng = np.random.default_rng(seed_for(seed, "folds"))
    order = rng.permutation(len(labels))
    if not kind_of(labels).multi_label:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % count
    return fold


def cross_validated(
    labels: Labels, learn: Callable[[NDArray[np.int64], NDArray[np.int64]], Floats], *, count: int, seed: int
) -> Floats:
    """Out-of-fold probabilities, (n, C): every sample is judged by a model that has not seen it.

    Args:
        labels: Web labels, (n,) or (n, C).
        learn: From training rows and rows to judge to their probabilities.
        count: Number of folds.
        seed: Of the folds.
    """
    fold = folds(labels, count, seed=seed)
    used = np.unique(fold)
    order = np.concatenate([np.flatnonzero(fold == number) for number in used])
    parts = [learn(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in used]
    return np.concatenate(parts)[np.argsort(order)]


def estimate_noise(probabilities: Floats, labels: Labels) -> float:
    """Share of wrong labels by confident learning's counting (Northcutt et al. 2021), single-label.

    A sample counts as wrong when another class reaches that class's mean self-confidence and is the
    most probable one of those that do; a sample of which nobody is sure counts as right. Too high
    where the classes are hard to tell apart.

    Args:
        probabilities: out of fold, (n, C).
        labels: web labels, (n,).
    """
    n_classes = probabilities.shape[1]
    bars = np.full(n_classes, np.inf)
    for c in range(n_classes):
        own = probabilities[labels == c, c]
        if len(own):
            bars[c] = own.mean()
    confident = np.where(probabilities >= bars, probabilities, -1.0)
    sure = confident.max(axis=1) >= 0
    wrong = sure & (confident.argmax(axis=1) != labels)
    return float(wrong.mean()) if len(labels) else 0.0


def minimise(
    net: nn.Module,
    loss: Callable[[int], Tensor],
    *,
    name: str,
    steps: int,
    lr: float,
    decay: float = 0.0,
    bar: progress.Bar = progress.silent,
) -> None:
    """Adam on all weights of a network; afterwards it is in eval mode and learns no more.

    Args:
        net: What is trained, in place.
        loss: From the step's number to its loss.
        name: For the progress.
        steps: How many.
        lr: Learning rate.
        decay: L2 penalty.
        bar: Progress.

    >>> net = nn.Linear(1, 1)
    >>> minimise(net, lambda _: (net(torch.ones(1, 1)) - 3).square().sum(), name="", steps=500, lr=0.1)
    >>> round(float(net(torch.ones(1, 1))), 2)
    3.0
    """
    net.train().requires_grad_(True)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=decay)
    with bar(name, steps) as advance:
        for step in range(steps):
            optimizer.zero_grad()
            loss(step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            advance(1)
    net.eval().requires_grad_(False)
