"""The plan of a run: every stage once, in order. Read this first.

Stages meet only through artefacts in the run directory. A stage is a file of this folder whose ``STAGE``
declares what it reads, the settings that decide it, its command and its work (`capro.run.stage.Stage`);
adding one is one file and one line below. Freshness, hints, the order of `capro --help`, the report's list of
stages and the cost table follow from the declarations.

A stage's file is imported when it is needed: `capro --help` and `capro scan` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capro.run.directory import Run
from capro.run.progress import SILENT, Watch
from capro.run.stage import Plan, Stage


def _load(name: str) -> Stage:
    stage: Stage = import_module(f"capro.stages.{name}").STAGE
    return stage


PLAN = Plan(
    [
        "scan",
        "classes",
        "pixels",
        "features",
        "pretrain",
        "embed",
        "graph",
        "match",
        "joint",
        "posterior",
        "train",
        "clean",
        "finetune",
        "evaluate",
    ],
    _load,
)


def run_all(run: Run, *, watch: Watch = SILENT) -> dict[str, Any]:
    """Do every stage that is not fresh; returns what evaluate measured, empty without a test split."""
    from capro.model_folders import check_models
    from capro.run.ranks import check_tracker

    check_tracker(run.settings)  # now, not hours later when the first training begins
    check_models(run.settings)
    if run.settings.method == "plus":
        from capro.text.towers import has_text_tower

        has_text_tower(run.settings.net.backbone)  # asks the hub once: whether there is a stage `joint`
    PLAN.run(run, watch=watch)
    return run.result("evaluate")
