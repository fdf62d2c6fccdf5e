"""What tests of whole runs need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from capro.stages import classes, embed, match
from tests import tiny


@pytest.fixture(scope="module")
def words() -> Iterator[None]:
    """A text encoder without weights, and no waiting for disks: no power is cut here, processes are killed."""
    patch = pytest.MonkeyPatch()
    real = embed.load_text_encoder

    def load(name: str, **options: Any) -> Any:
        return tiny.WordEncoder() if name == "minilm" else real(name, **options)

    for module in (classes, embed, match):
        patch.setattr(module, "load_text_encoder", load)
    patch.setattr(os, "fsync", lambda _descriptor: None)
    yield
    patch.undo()
