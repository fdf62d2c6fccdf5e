"""What the report says in words."""

from __future__ import annotations

from capro.report import sentences
from tests.report.made import NAMES


def test_harm_is_said() -> None:
    comparison = {
        "metrics": [{"name": "top1", "vanilla": 0.5, "capro": 0.4}],
        "main": "top1",
        "changes": [{"label": 0, "change": -0.1}],
        "tests": 10,
        "interval": (-0.2, 0.0),
    }
    text = sentences.brought(comparison, NAMES)
    assert "fell from 50.0 to 40.0" in text
    assert "0 classes got better, 1 worse (most of all cat, \N{MINUS SIGN}10.0 points)" in text


def test_anchors_are_said_by_what_chose_them() -> None:
    text = sentences.was_done(None, {"text": 3, "picture": 1, "chance": 2}, multi_label=False)
    assert text.startswith("3 images became anchors: their texts, together with")
    assert "1 image without a text became anchors: they are the most typical" in text
    assert text.endswith("2 images were drawn at random as anchors.")
    assert sentences.was_done(None, {}, multi_label=False) == ""
