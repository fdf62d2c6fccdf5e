"""The table of costs."""

from __future__ import annotations

from capro.bench.cost import Part, cost_markdown
from capro.bench.summary import csv_text


def test_cost_table() -> None:
    parts = [Part("encoder", 25_000_000, 3.8), Part("step 2", seconds=10.0, epochs=5)]
    text = cost_markdown("Cost", parts, 100, "capro bench cost")
    assert "| encoder | 25.0 M | 3.8 |  |  |" in text
    assert "| step 2 |  |  | 10.0 | 2.00 |" in text
    assert csv_text(Part._fields, parts).splitlines()[1] == "encoder,25000000,3.8,,"
