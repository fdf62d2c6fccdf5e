"""A baseline as a stage of a run: trained, kept and scored like everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.bench.baselines import selection
from capro.bench.baselines.registry import BASELINES
from capro.bench.baselines.simple import VOTERS
from capro.bench.baselines.work import FOLDS, Work, verified_labels
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
from capro.stages.training import clear
from capro.train.setup import net_state, training_set


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


def baseline_stage(name: str, *, several: bool) -> Stage:
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
        test = manifest.split("test")
        if not len(test):
            return {}
        y = known_labels(manifest, test, this.training.classes)
        return metrics.headline(np.array(job.read(TEST_SCORES.of(stage))), y)

    def settings(run: Run) -> dict[str, Any]:
        return {**_settings(run, chosen.version), "name": name, **chosen.settings(run.settings)}

    def files(run: Run) -> dict[str, Any]:
        given = chosen.verified != "never" and run.settings.baselines.verified
        return {"verified": fingerprint(verified_labels(run))} if given else {}

    beliefs = [BELIEFS_STAGE.name] if chosen.believes(several) else []
    reads = ["scan", "classes", "pretrain", *beliefs, *chosen.reads]
    return Stage(stage, work, settings=settings, files=files, reads=reads, after=clear)


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
    chosen, several = BASELINES[name], manifest_of(run).task != "single"
    if not (chosen.several if several else chosen.one):
        kind = "several labels" if several else "one label"
        raise ConfigError(f"the baseline {name} has no form for {kind}", hint="leave its row out with --row")
    if chosen.verified == "always" and not run.settings.baselines.verified:
        raise ConfigError(
            f"the baseline {name} needs verified samples, and baselines.verified is not set",
            hint="--set baselines.verified=FILE, a table with file_name and true_labels (docs/bench.md)",
        )
    if chosen.believes(several):
        perform(run, BELIEFS_STAGE, watch=watch)
    if chosen.reads:
        plan.do(run, *chosen.reads, watch=watch)
    stage = baseline_stage(name, several=several)
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
        k=VOTERS,
    )
