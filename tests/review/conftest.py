"""Runs that the tests of the review share, and whatever serves them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from capro.pipeline.run import Run
from capro.review.session import ReviewSession
from tests.review.made import make_run


@pytest.fixture(scope="session")
def single_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("review"))


@pytest.fixture(scope="session")
def shared_multi_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("review-multi"), multi=True)


@pytest.fixture
def run(single_run: Run, tmp_path: Path) -> Run:
    shutil.copytree(single_run.path, tmp_path / "run")
    return Run.open(tmp_path / "run")


@pytest.fixture
def multi_run(shared_multi_run: Run, tmp_path: Path) -> Run:
    shutil.copytree(shared_multi_run.path, tmp_path / "multi")
    return Run.open(tmp_path / "multi")


@pytest.fixture
def session(run: Run) -> Iterator[ReviewSession]:
    made = ReviewSession(run)
    yield made
    made.log.close()
