"""One function per stage: load, call, save. Read this first.

Each function takes a ``Run``, does its work through ``Run.stage`` (so that it is skipped when it is
fresh), and leaves its artefacts in the run directory. Stages meet only there:

    scan ─► classes ─► pixels | features ─► pretrain ─► embed ─► match ─► train ─► clean ─► finetune
                                                                                      └─► evaluate
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capro import assemble, progress
from capro.pipeline.assessment import assess
from capro.pipeline.ingest import classes, features, pixels, scan, suggest
from capro.pipeline.matching import anchor_sheet, embed, match, purity_by_enhancer
from capro.pipeline.reporting import report
from capro.pipeline.results import evaluate, label_accuracies
from capro.pipeline.threshold import threshold
from capro.pipeline.training import clean, finetune, pretrain, train
from capro.runs import Run

__all__ = [
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
    "pixels",
    "pretrain",
    "purity_by_enhancer",
    "report",
    "run_all",
    "scan",
    "suggest",
    "threshold",
    "train",
]


def run_all(
    run: Run, *, bar: progress.Bar = progress.silent, say: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, float]]:
    """Every stage in order; what is fresh is skipped, so this is also how a run resumes."""
    assemble.check_tracker(run.settings)
    stages: list[tuple[str, Callable[[], Any]]] = [
        ("scan", lambda: scan(run, bar=bar)),
        ("classes", lambda: classes(run, bar=bar, warn=say)),
        ("pixels", lambda: pixels(run, bar=bar)),
    ]
    if run.settings.net.mode == "frozen":
        stages.append(("features", lambda: features(run, bar=bar, say=say)))
    stages += [
        ("pretrain", lambda: pretrain(run, bar=bar, say=say)),
        ("embed", lambda: embed(run, bar=bar, say=say)),
        ("match", lambda: match(run, bar=bar)),
        ("train", lambda: train(run, bar=bar)),
        ("clean", lambda: clean(run)),
        ("finetune", lambda: finetune(run, bar=bar)),
    ]
    for number, (name, work) in enumerate(stages, start=1):
        say(f"[{number}/{len(stages) + 1}] {name}")
        work()
    say(f"[{len(stages) + 1}/{len(stages) + 1}] evaluate")
    return evaluate(run)
