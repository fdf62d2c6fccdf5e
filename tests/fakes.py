"""Stages whose artefacts a test writes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from capro.pipeline.artefacts import FINISHED, VISUAL, Artefact, write_array, write_json
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
    """Make a run of faked stages whole: those that are missing are empty, and each is fresh."""
    for stage in PLAN.of(run.settings):
        done = run.finished(stage.name)
        if done is None and stage.name == "evaluate":
            continue
        if done is None:
            fake_stage(run, stage.name, _visual if stage.name == "embed" else lambda _: None)
        causes = stage.causes(run)
        _change(
            run,
            stage.name,
            fingerprint=causes.fingerprint,
            reads=causes.reads,
            source=causes.source,
            decisions=causes.decisions,
        )


def _visual(folder: Path) -> None:
    write_array(folder / VISUAL.file, np.zeros((1, 1), np.float32))  # how many there are decides the graph


def _change(run: Run, stage: str, **values: Any) -> None:
    """Change a stage.json as if the stage had written it so."""
    done = {**(run.finished(stage) or {}), **values}
    done.pop(SELF)
    write_json(run.folder(stage) / FINISHED, sealed(done))


def rewrite(run: Run, artefact: Artefact[T], value: T) -> None:
    """Another content of an artefact, as if its stage had written it."""
    artefact.save(run.file(artefact), value)
    _change(run, artefact.stage, files=recorded(run.folder(artefact.stage), leave_out=FINISHED))
