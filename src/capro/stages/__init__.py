"""The stages of a run, and all of them in order.

`plan.py` declares every stage: read it first. A stage works in the file of its name; adding one is its file and
its declaration. Freshness, the order of `capro --help`, the report's list of stages and the cost table
follow from the declarations (`capro.pipeline.stage.Stage`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.plan import Agree
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.stages.plan import PLAN, STAGES

__all__ = ["PLAN", "STAGES", "run_all"]


def run_all(
    run: Run,
    *,
    watch: Watch = SILENT,
    choose: Callable[[Run, Watch], Run] | None = None,
    engine: Engine = THIS_PROCESS,
    agree: Agree | None = None,
) -> dict[str, Any]:
    """Do every stage that is not fresh; return the figures of evaluate, which are empty without a test split.

    Args:
        run: The run.
        watch: Where progress is shown.
        choose: Called after the scan; returns the run with the settings for the other stages.
        engine: What does work that is divided into parts.
        agree: Asked before long work, or what a person decided, is replaced; nobody is asked if unset.
    """
    plan = PLAN.on(engine)
    watch.plan(plan.all_names(run))
    done = ""
    if choose is not None:
        done = "scan"
        plan.do(run, done, watch=watch)
        run = choose(run, watch)
    return plan.do(run, *(name for name in plan.all_names(run) if name != done), watch=watch, agree=agree)
