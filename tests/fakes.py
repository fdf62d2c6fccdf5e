"""Stages whose artefacts a test writes itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from capro.pipeline.artefacts import FINISHED, Artefact, read_json, write_json
from capro.pipeline.checksums import SELF, recorded, sealed
from capro.pipeline.run import Run
from capro.pipeline.stage import Stage, perform
from capro.stages import PLAN

T = TypeVar("T")


def fake_stage(
    run: Run, name: str, write: Callable[[Path], Mapping[str, Any] | None], **settings: Any
) -> None:
    """Finish a stage by writing into its folder; other settings do it again."""
    perform(run, Stage(name, lambda job: write(job.folder), settings=lambda _: settings))


def fake_the_rest(run: Run) -> None:
    """Make a run of faked stages whole: those that are missing are empty, and each fits what it reads."""
    for stage in PLAN.of(run.settings):
        done = run.finished(stage.name)
        if done is None and stage.name == "evaluate":
            continue
        if done is None:
            fake_stage(run, stage.name, lambda _: None)
        done = run.finished(stage.name) or {}
        reads = {name: run.need(name) for name in stage.inputs(run.settings)}
        done.pop(SELF)
        write_json(run.folder(stage.name) / FINISHED, sealed(done | {"reads": reads}))


def as_version_0_1_0(file: Path, *without: str) -> None:
    """Rewrite a stage.json as version 0.1.0 wrote it: no checksums, and without other parts."""
    done = read_json(file)
    for name in ("files", SELF, *without):
        del done[name]
    file.write_text(json.dumps(done))


def rewrite(run: Run, artefact: Artefact[T], value: T) -> None:
    """Another content of an artefact, as if its stage had written it."""
    artefact.save(run.file(artefact), value)
    folder = run.folder(artefact.stage)
    done = read_json(folder / FINISHED)
    done.pop(SELF)
    write_json(folder / FINISHED, sealed(done | {"files": recorded(folder, leave_out=FINISHED)}))
