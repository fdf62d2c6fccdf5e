"""Here what is written waits for the disk, as it does for users."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPRO_FSYNC", "1")
