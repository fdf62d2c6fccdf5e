"""The stages of a run, and all of them in order.

`plan.py` declares every stage: read it first. A stage works in the file of its name; adding one is its file and
its declaration. Freshness, hints, the order of `capro --help`, the report's list of stages and the cost table
follow from the declarations (`capro.pipeline.stage.Stage`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.stages.plan import PLAN, STAGES

__all__ = ["PLAN", "STAGES", "Choose", "run_all"]
Choose = Callable[[Run, Watch], Run]  # chooses the settings of a run whose scan has finished


def run_all(
    run: Run, *, watch: Watch = SILENT, choose: Choose | None = None, engine: Engine = THIS_PROCESS
) -> dict[str, Any]:
    """Do every stage that is not fresh; return the figures of evaluate, which are empty without a test split.

    Args:
        run: The run.
        watch: Where progress is shown.
        choose: Called after the scan; returns the run with the settings for the other stages.
        engine: What does work that is divided into parts.
    """
    from capro.models.folders import check_models, has_text_tower
    from capro.pipeline.ranks import check_tracker
    from capro.stages.start import slow

    check_tracker(run.settings)  # now, not hours later when the first training begins
    check_models(run.settings, begun=run.finished("pretrain") is not None)
    plan = PLAN.on(engine)
    plan.announce(run, watch)
    done = set[str]()
    if choose is not None:
        plan.do(run, "scan", watch=watch)
        run, done = choose(run, watch), {"scan"}
    if run.settings.method == "plus":
        has_text_tower(run.settings.net.backbone)  # asks the hub once: whether there is a stage `joint`
    if text := slow(run.settings):
        watch.warn(text)
    plan.run(run, watch=watch, ready=done)
    return run.result("evaluate")
