"""Stages whose artefacts a test writes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capro.run.directory import Run
from capro.run.stage import Stage, perform


def fake_stage(
    run: Run, name: str, write: Callable[[Path], Mapping[str, Any] | None], **settings: Any
) -> None:
    """Finish a stage by writing into its folder; other settings do it again."""
    perform(run, Stage(name, lambda job: write(job.folder), settings=lambda _: settings))
