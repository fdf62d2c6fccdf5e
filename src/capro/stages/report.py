"""The report: one HTML file of whatever the run holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capro.pipeline.artefacts import REPORT, write_text
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.pipeline.stage import Job, Stage, perform
from capro.report.collect import collect
from capro.report.page import render, version
from capro.stages import PLAN
from capro.stages.plan import threshold_name

HELD_OUT = threshold_name("capro")


def report_stage(title: str | None) -> Stage:
    """The stage that writes the page; it reads every stage that has finished."""

    def work(job: Job) -> dict[str, Any]:
        page = render(collect(job.run, PLAN, held_out=HELD_OUT, title=title, watch=job.watch))
        job.write(REPORT, page)
        return {"bytes": len(page.encode("utf-8"))}

    def reads(run: Run) -> list[str]:
        return [name for name in (*(stage.name for stage in PLAN), HELD_OUT) if run.finished(name)]

    def settings(run: Run) -> dict[str, Any]:
        read = {name: run.identity(name) for name in reads(run)}
        return {"title": title, "page": version(), "read": read}

    return Stage("report", work, settings=settings, reads=["scan"])


def report(
    run: Run, *, out: Path | None = None, title: str | None = None, force: bool = False, watch: Watch = SILENT
) -> Path:
    """Write the report, and a copy to ``out``; stages that have not run are named in it."""
    path = run.file(REPORT)
    perform(run, report_stage(title), watch=watch, force=force or not path.exists())
    if out is None:
        return path
    write_text(out, path.read_text("utf-8"))
    return out
