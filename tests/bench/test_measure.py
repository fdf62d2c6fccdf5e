"""The table of costs."""

from __future__ import annotations

import pytest

from capro import config
from capro.bench.measure import Part, cost_markdown, encoder_costs
from capro.bench.summary import csv_text


def test_cost_table() -> None:
    parts = [Part("encoder", 25_000_000, 3.8), Part("step 2", seconds=10.0, epochs=5)]
    text = cost_markdown("Cost", parts, 100, "capro bench cost")
    assert "| encoder | 25.0 M | 3.8 |  |  |" in text
    assert "| step 2 |  |  | 10.0 | 2.00 |" in text
    assert csv_text(Part._fields, parts).splitlines()[1] == "encoder,25000000,3.8,,"


def test_a_multiply_add_counts_once_in_both_encoders() -> None:
    settings = config.load(overrides=["net.backbone=small", "views.size=32", "embed.max_tokens=256"])
    image, text = encoder_costs(settings)
    assert image.gflops == pytest.approx(0.065, abs=0.005)
    # MiniLM-L6 by hand: six layers of width d and inner width 4 d, n tokens
    d, n = 384, 256
    products = (
        4 * d * d + 2 * d * 4 * d
    )  # query, key, value, output; two of the inner layer; each for n tokens
    attention = 2 * n * n * d  # scores, and their products with the values
    assert text.gflops == pytest.approx(6 * (n * products + attention) / 1e9, rel=1e-3)
    assert f"{text.gflops:.2f}" == "3.02"
