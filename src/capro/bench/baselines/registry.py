"""The baselines by name, and each as a stage of a run: trained, kept and scored like everything else.

To add one: write its function in the file of its kind, and name it in `BASELINES`; the table `main` then has its row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capro.bench.baselines import graphs, losses, mentors, multi_label, multimodal, selection, weighting
from capro.bench.baselines.work import FOLDS, Learned, Work, verified_labels
from capro.config import Settings
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.errors import ConfigError, did_you_mean
from capro.models.siamese import Siamese
from capro.pipeline.artefacts import BASELINE_FIGURES, BELIEFS, STEP1, TEST_SCORES, VAL_SCORES
from capro.pipeline.checksums import fingerprint
from capro.pipeline.plan import Plan
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.ranks import process_count
from capro.pipeline.run import Run
from capro.pipeline.stage import Job, Stage, perform
from capro.results import metrics
from capro.stages import PLAN
from capro.train.setup import net_state, training_set


@dataclass(frozen=True)
class Baseline:
    """One baseline.

    Attributes:
        label: Name of its row in tables.
        learn: Trains it; returns networks to score (None: the vote of neighbours) and figures to keep.
        beliefs: For which labels it reads cross-validated beliefs.
        settings: The settings that decide it beside those of step 1.
        reads: Stages of the plan that it reads beside scan, classes and pretrain; done where missing.
        single_label: Whether it has a form for one label per sample.
        multi_label: Whether it has a form for several.
        verified: Whether it learns from verified samples (``baselines.verified``).
        version: Raise it when the baseline changes: stored results of the old one are then not fresh.
    """

    label: str
    learn: Callable[[Work], Learned]
    beliefs: Literal["never", "single-label", "always"] = "never"
    settings: Callable[[Settings], dict[str, Any]] = lambda _: {}
    reads: tuple[str, ...] = ()
    single_label: bool = True
    multi_label: bool = True
    verified: Literal["never", "if given", "always"] = "never"
    version: int = 1

    def stages_read(self, *, multi_label: bool) -> tuple[str, ...]:
        """The stages that must be done before it, beside scan, classes and pretrain."""
        believes = self.beliefs == "always" or (self.beliefs == "single-label" and not multi_label)
        return ((BELIEFS_STAGE.name,) if believes else ()) + self.reads


def _provider(name: str) -> Callable[[Settings], dict[str, Any]]:
    """The settings of a reference provider."""
    return lambda settings: {"reference": settings.reference.of(name)}


BASELINES: dict[str, Baseline] = {
    "vanilla": Baseline("Vanilla", losses.vanilla),
    "linear": Baseline("Linear probe", losses.linear),
    "knn": Baseline("k-NN label vote", selection.knn),
    "smoothing": Baseline("Label smoothing", losses.referenced("smoothing"), settings=_provider("smoothing")),
    "mixup": Baseline("Mix-up", losses.referenced("mixup"), settings=_provider("mixup")),
    "bootstrap": Baseline("Bootstrap", losses.referenced("bootstrap"), settings=_provider("bootstrap")),
    "scc": Baseline("SCC", losses.scc, version=2),
    "ncr": Baseline("NCR", losses.ncr, settings=_provider("ncr"), version=2),
    "smallloss": Baseline("Small-loss selection", selection.smallloss, beliefs="single-label", version=2),
    "coteaching": Baseline("Co-teaching", selection.coteaching, beliefs="single-label", version=3),
    "cleanlab": Baseline("Confident learning (cleanlab)", selection.cleanlab, beliefs="always"),
    "mentornet": Baseline(
        "MentorNet", mentors.mentornet,
        beliefs="single-label", multi_label=False, verified="if given", version=2,
    ),
    "curriculumnet": Baseline("CurriculumNet", weighting.curriculumnet, multi_label=False),
    "cleannet": Baseline("CleanNet", mentors.cleannet, multi_label=False, verified="always"),
    "somnet": Baseline("SOMNet", weighting.somnet, multi_label=False),
    "mopro": Baseline("MoPro", losses.mopro, settings=losses.mopro_settings),
    "vsgraph": Baseline(
        "VSGraph", graphs.vsgraph, reads=("embed",), version=2,
        settings=lambda settings: {"match": settings.match.model_dump(include={"k", "exact_below"})},
    ),
    "sinet": Baseline("SINet", graphs.sinet, reads=("embed",), multi_label=False),
    "mile": Baseline("MILe", multi_label.mile, multi_label=False, version=2),
    "multimodal": Baseline("Multimodal", multimodal.multimodal, reads=("embed",)),
    "mcpl": Baseline("MCPL", multi_label.mcpl, beliefs="always", single_label=False),
}  # fmt: skip


def _settings(run: Run, version: int) -> dict[str, Any]:
    settings = run.settings
    return {
        "version": version,
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
    settings=lambda run: {**_settings(run, 1), "folds": FOLDS},
    reads=["scan", "classes", "pretrain"],
)


def baseline_stage(name: str, *, multi_label: bool) -> Stage:
    """The stage ``baselines/NAME``: scores of the test and val samples, and the model if it has one."""
    stage, chosen = f"baselines/{name}", BASELINES[name]

    def work(job: Job) -> dict[str, Any]:
        this = Work(job, training_set(job.run, job.ranks.accelerator.device))
        net, figures = chosen.learn(this)
        manifest = manifest_of(job.run)
        for artefact, split in ((TEST_SCORES, "test"), (VAL_SCORES, "val")):
            positions = manifest.split(split)
            if len(positions):
                job.write(artefact, _scores(this, net, positions))
        if net is not None:
            job.write(STEP1, net_state(net))
        job.write(BASELINE_FIGURES, figures)
        y = known_labels(manifest, manifest.split("test"), this.training.classes)
        return metrics.headline(np.array(job.read(TEST_SCORES.of(stage))), y)

    def settings(run: Run) -> dict[str, Any]:
        learns = chosen.verified != "never" and run.settings.baselines.verified
        return {
            **_settings(run, chosen.version),
            "name": name,
            **chosen.settings(run.settings),
            **({"verified": fingerprint(verified_labels(run))} if learns else {}),
        }

    reads = ["scan", "classes", "pretrain", *chosen.stages_read(multi_label=multi_label)]
    return Stage(stage, work, settings=settings, reads=reads)


def baseline(run: Run, name: str, *, watch: Watch = SILENT, plan: Plan = PLAN) -> dict[str, float]:
    """Train a baseline and score it on exactly the test samples.

    Args:
        run: A run whose step 1 has finished.
        name: Of the baseline.
        watch: Where progress is shown.
        plan: Does the stages that the baseline reads beside step 1.
    """
    if name not in BASELINES:
        raise ConfigError(f"no baseline '{name}'", hint=did_you_mean(name, BASELINES))
    if process_count() > 1:  # their trainings exchange nothing
        raise ConfigError(
            f"baselines train in one process, {process_count()} were launched",
            hint="start the command without torchrun or accelerate",
        )
    chosen, multi = BASELINES[name], manifest_of(run).multi_label
    if not (chosen.multi_label if multi else chosen.single_label):
        kind = "multi-label data" if multi else "single-label data"
        raise ConfigError(f"the baseline {name} has no form for {kind}", hint="leave its row out with --row")
    if chosen.verified == "always" and not run.settings.baselines.verified:
        raise ConfigError(
            f"the baseline {name} needs verified samples, and baselines.verified is not set",
            hint="--set baselines.verified=FILE, a table with file_name and true_labels (docs/bench.md)",
        )
    if BELIEFS_STAGE.name in chosen.stages_read(multi_label=multi):
        perform(run, BELIEFS_STAGE, watch=watch)
    if chosen.reads:
        plan.do(run, *chosen.reads, watch=watch)
    stage = baseline_stage(name, multi_label=multi)
    perform(run, stage, watch=watch)
    return run.result(stage.name)


def _scores(work: Work, net: Siamese | None, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Probabilities of samples by the baseline's classifier, or by the vote of neighbours."""
    training = work.training
    if net is not None:
        return work.believed(net, positions).cpu().numpy()
    return selection.vote(
        work.features(training.positions),
        training.labels.cpu().numpy(),
        work.features(positions),
        len(training.classes),
        k=selection.VOTERS,
    )
