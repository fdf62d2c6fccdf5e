"""Means, spreads, paired differences, Markdown, CSV, figures and the grids themselves."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.bench.figure import draw
from capro.bench.summary import paired, results_csv, results_markdown, spread
from tests.bench.cases import result


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9))
def test_spread_is_numpys(values: list[float]) -> None:
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


def test_paired_compares_the_same_seeds() -> None:
    found = paired({0: 0.7, 1: 0.7, 5: 0.1}, {0: 0.5, 1: 0.8})
    assert found.mean == pytest.approx(0.05)
    assert (found.wins, found.size) == (1, 2)
    assert np.isnan(paired({0: 1.0}, {1: 1.0}).mean)


def test_markdown() -> None:
    text = results_markdown(result())
    assert "| 0.1 | 55.0 ± 7.1 | 85.0 ± 7.1 |  |  |" in text
    assert "| 0.5 <b>\\| | 70.0 ± 0.0 | 90.0 ± 0.0 | +15.0 ± 7.1 (2/2) | 76.0 / 91.3 |" in text
    assert "paper's Google500: top1 / top5 |" in text
    assert "ImageNet500" not in text  # there is no second test set
    assert "- not run: 1: no encoder 'x'" in text
    assert "A note." in text
    widths = {line.count("|") - line.count("\\|") for line in text.splitlines() if "|" in line}
    assert len(widths) == 1


def test_a_remark_stands_behind_the_name_of_its_row() -> None:
    made = result()
    made.rows[1].label, made.rows[1].remark = "CleanNet", "has seen verified labels"
    assert "| CleanNet (has seen verified labels) | 70.0" in results_markdown(made)
    assert "t,CleanNet (has seen verified labels),0,top1,0.7" in results_csv(made)
    assert "CleanNet (has seen verified labels)" in draw(made)


def test_csv_has_every_value() -> None:
    rows = list(csv.DictReader(io.StringIO(results_csv(result()))))
    assert len(rows) == 8
    assert rows[4] == {
        "table": "t", "row": "0.5 <b>|", "seed": "0", "metric": "top1", "value": "0.7"
    }  # fmt: skip
