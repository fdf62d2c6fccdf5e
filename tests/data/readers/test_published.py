"""Published datasets through the first stages: classes and senses need no settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro import config
from capro.models.classes import classes_of
from capro.pipeline.artefacts import SUMMARY
from capro.pipeline.progress import Lines
from capro.pipeline.run import Run
from capro.stages import PLAN
from tests.data.published import CONCEPTS, NAMES, nuswide, webvision


@pytest.mark.parametrize("preset", ["webvision1k", "google500", "nuswide"])
def test_the_preset_and_the_folder_are_enough(tmp_path: Path, preset: str) -> None:
    if preset == "nuswide":
        root = nuswide(tmp_path / "data", [([name], [name]) for name in CONCEPTS], [(["sky"], ["sky"])])
    else:
        root = webvision(tmp_path / "data")
    settings = config.load(preset_name=preset, overrides=[f"data.source={root}"])
    run = Run.create(tmp_path / "run", settings)
    content = PLAN.do(run, "scan")
    assert run.read(SUMMARY)["quarantined"] == 0
    warnings: list[str] = []
    PLAN.do(run, "classes", watch=Lines(warnings.append, stages=False))
    specs = classes_of(run)
    assert [spec.name for spec in specs] == (CONCEPTS if preset == "nuswide" else NAMES)
    assert all(spec.sense for spec in specs)
    assert warnings == []  # nothing was guessed, no class is empty
    assert PLAN.do(run, "scan") == content
