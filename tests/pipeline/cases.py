"""Made-up cases that several test files need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from capro.config import Settings
from capro.pipeline.run import Run
from capro.pipeline.stage import Job, Stage


def stage(
    name: str, work: Callable[[Job], Any] = lambda _: None, *, reads: Sequence[str] = (), **settings: Any
) -> Stage:
    return Stage(name, work, settings=lambda _: settings, reads=reads)


def make(tmp_path: Path, settings: Settings | None = None) -> Run:
    return Run.create(tmp_path / "run", settings or Settings())
