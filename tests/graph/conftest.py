"""Fixtures that several test files need."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.graph import ondisk as budgets
from capro.graph.ondisk import Budget


@pytest.fixture
def budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Budget:
    """A budget under which everything but a few rows goes to disk, in many blocks."""
    monkeypatch.setattr(budgets, "LEAST_BYTES", 0)
    return Budget(64 << 10, tmp_path / "scratch")
