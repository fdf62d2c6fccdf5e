"""The report stage: one HTML file of whatever the run holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capro import progress
from capro.pipeline.base import stage
from capro.report.collect import collect
from capro.report.load import HELD_OUT, STAGES
from capro.report.page import render, version
from capro.runs import Run, write_text


def report(
    run: Run,
    *,
    out: Path | None = None,
    title: str | None = None,
    force: bool = False,
    bar: progress.Bar = progress.silent,
) -> Path:
    """Write ``report/report.html``, and a copy to ``out``; stages that have not run are named in it."""
    run.need("scan")
    path = run.folder("report") / "report.html"

    def work(_folder: Path) -> dict[str, Any]:
        page = render(collect(run, title=title, bar=bar))
        write_text(path, page)
        return {"bytes": path.stat().st_size}

    done = [name for name in (*STAGES, HELD_OUT) if run.finished(name)]
    force = force or not path.exists()
    stage(
        run, "report", work, settings={"title": title, "page": version()}, inputs=done, force=force
    )
    if out is None:
        return path
    write_text(out, path.read_text("utf-8"))
    return out
