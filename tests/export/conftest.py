"""Fixtures that several test files need."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.export.model import export_model
from capro.pipeline.run import Run
from capro.stages.threshold import threshold
from tests.made_up import make_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def model(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "m"
    export_model(run, out, open_set=threshold(run))
    return out
