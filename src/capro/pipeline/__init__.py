"""One function per stage: load, call, save. Read this first.

Each function takes a ``Run``, does its work through ``Run.stage`` (so that it is skipped when it is
fresh), and leaves its artefacts in the run directory. Stages meet only there:

    scan ─► classes ─► pixels | features ─► pretrain ─► embed ─► match ─► train ─► clean ─► finetune
                                                                                      └─► evaluate
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from capro import assemble, progress
from capro.pipeline.assessment import assess
from capro.pipeline.ingest import classes, features, pixels, scan, suggest
from capro.pipeline.matching import (
    anchor_problems,
    anchor_sheet,
    embed,
    match,
    purity_by_enhancer,
)
from capro.pipeline.reporting import report
from capro.pipeline.results import evaluate, label_accuracies
from capro.pipeline.threshold import threshold
from capro.pipeline.training import clean, finetune, pretrain, train
from capro.report.words import scan_problems
from capro.runs import Run

__all__ = [
    "anchor_problems",
    "anchor_sheet",
    "assess",
    "classes",
    "clean",
    "embed",
    "evaluate",
    "features",
    "finetune",
    "label_accuracies",
    "match",
    "perform",
    "pixels",
    "pretrain",
    "purity_by_enhancer",
    "report",
    "run_all",
    "scan",
    "stages_of",
    "suggest",
    "threshold",
    "train",
]


Task = tuple[str, Callable[[], Any]]  # a stage's name, and the call that does it


def run_all(run: Run, *, watch: progress.Watch | None = None) -> dict[str, dict[str, float]]:
    """Every stage in order; what is fresh is skipped, so this is also how a run resumes."""
    watch = watch or progress.Watch()
    return dict(perform(run, stages_of(run, watch), watch)["evaluate"])


def stages_of(run: Run, watch: progress.Watch) -> list[Task]:
    """What ``run_all`` does, in order."""
    bar, say, warn = watch.bar, watch.say, watch.warn
    frozen = run.settings.net.mode == "frozen"
    return [
        ("scan", lambda: scan(run, bar=bar)),
        ("classes", lambda: classes(run, bar=bar, warn=warn)),
        ("pixels", lambda: pixels(run, bar=bar)),
        *([("features", lambda: features(run, bar=bar, say=say))] if frozen else []),
        ("pretrain", lambda: pretrain(run, bar=bar, say=say)),
        ("embed", lambda: embed(run, bar=bar, say=say)),
        ("match", lambda: match(run, bar=bar)),
        ("train", lambda: train(run, bar=bar)),
        ("clean", lambda: clean(run)),
        ("finetune", lambda: finetune(run, bar=bar)),
        ("evaluate", lambda: evaluate(run)),
    ]


def perform(run: Run, stages: Sequence[Task], watch: progress.Watch) -> dict[str, Any]:
    """Do stages one after another and tell where it is; returns what each returned, by name."""
    assemble.check_tracker(run.settings)
    problems = {"scan": scan_problems, "match": anchor_problems}
    found: dict[str, Any] = {}
    watch.plan([name for name, _ in stages])
    for name, work in stages:
        watch.begin(name)
        before = run.stamp(name)
        found[name] = work()
        watch.end(name, fresh=before is not None and run.stamp(name) == before)
        for problem in problems[name](found[name]) if name in problems else []:
            watch.warn(problem)
    return found
