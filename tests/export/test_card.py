"""The model card."""

from __future__ import annotations

from pathlib import Path

from capro.export.card import _plain
from capro.run.directory import Run


def test_card_has_data_settings_and_results(run: Run, model: Path) -> None:
    card = (model / "README.md").read_text()
    assert card.startswith("---\n")
    for text in ("## Data", "verdict: relabel", "## Measured", "| vanilla |", "| capro |", "top1"):
        assert text in card
    assert "gamma: 0.6" in card
    assert run.need("scan") in card
    top1 = run.result("evaluate")["capro"]["top1"]
    assert f"{100 * top1:.1f}" in card
    assert _plain("<script>[x](javascript:1)`\n") == "script x javascript:1"
