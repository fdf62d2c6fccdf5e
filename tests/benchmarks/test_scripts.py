"""Every script of benchmarks/ follows the names of the modules it measures."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted(path.stem for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_imports(name: str) -> None:
    assert importlib.import_module(name).__doc__
