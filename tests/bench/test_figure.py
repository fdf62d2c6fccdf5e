"""Figures of bench are valid and readable."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.bench import figure
from capro.bench.summary import Measured, TableResult
from capro.results.open_set import Curve, Point
from tests.bench.cases import result

CURVE = Curve([Point(0.0, 0.0, 0.0, 0.1), Point(1.0, 0.0, 0.0, 0.4)])


@pytest.mark.parametrize(
    "text",
    [figure.draw(result()), figure.draw(result(axis="lambda")), figure.curves("A & B", {"0.1": CURVE})],
)
def test_figures_are_valid_and_escaped(text: str) -> None:
    root = ET.fromstring(text)
    words = "".join(root.itertext())
    assert "A & B" in words
    assert "nan" not in text
    assert len(root) > 10


def test_figure_of_nothing_is_valid() -> None:
    empty = TableResult("t", "none", [Measured("a")], ("top1",), "a", (0,))
    ET.fromstring(figure.draw(empty))
    ET.fromstring(figure.bars("none", [], "s"))


@given(st.floats(-50, 50), st.floats(0.01, 100))
def test_ticks_lie_inside_and_are_a_few(low: float, width: float) -> None:
    found = figure.ticks(low, low + width, 8)
    assert 3 <= len(found) <= 10
    assert all(low - 1e-6 <= tick <= low + width + 1e-6 for tick in found)
