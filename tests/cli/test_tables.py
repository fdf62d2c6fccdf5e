"""What commands print for people: counts agree with their nouns and verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.cli import tables


@pytest.mark.parametrize(
    ("by_picture", "sentence"),
    [
        (1, "1 of them has no text and was chosen as a typical picture of its class"),
        (12, "12 of them have no text and were chosen as typical pictures of their class"),
    ],
)
def test_anchors_chosen_by_their_pictures(
    by_picture: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"anchors": 30, "chosen_by": {"picture": by_picture}, "recall": None}
    tables.match_summary(found, Path("anchors.parquet"))
    assert capsys.readouterr().out == f"30 anchors in anchors.parquet\n{sentence}\n"
