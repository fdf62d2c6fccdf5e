"""What is in a manifest, in words."""

from __future__ import annotations

from capro.data.images import REASONS
from capro.data.manifest import ROW_REASONS
from capro.data.summary import explain


def test_every_reason_has_words() -> None:
    for reason in (*REASONS, *ROW_REASONS):
        assert len(explain(reason).split()) > 2
