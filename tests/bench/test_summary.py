"""Means, spreads, paired differences, Markdown, CSV, figures and the grids themselves."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro import config
from capro.bench import figure
from capro.bench.baselines import BASELINES
from capro.bench.cost import Part, cost_markdown
from capro.bench.grids import TABLES, table_of
from capro.bench.summary import Measured, TableResult, csv_text, paired, results_csv, results_markdown, spread
from capro.errors import ConfigError


def result(*, axis: str = "", series: bool = False) -> TableResult:
    rows = [
        Measured("0.1", {0: {"top1": 0.5, "top5": 0.9}, 1: {"top1": 0.6, "top5": 0.8}}, x=0.1),
        Measured(
            "0.5 <b>|", {0: {"top1": 0.7, "top5": 0.9}, 1: {"top1": 0.7, "top5": 0.9}},
            paper={"top1": 76.0}, x=0.5,
        ),
        Measured("1", x=1.0, problem="no encoder 'x'"),
    ]  # fmt: skip
    if series:
        rows[0].series = [(0.0, 0.1), (1.0, 0.4)]
    return TableResult("t", "A & B", rows, ("top1", "top5"), "0.1", (0, 1), axis=axis, note="A note.")


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
    assert "| 0.5 <b>\\| | 70.0 ± 0.0 | 90.0 ± 0.0 | +15.0 ± 7.1 (2/2) | 76.0 |" in text
    assert "- not run: 1: no encoder 'x'" in text
    assert "A note." in text
    widths = {line.count("|") - line.count("\\|") for line in text.splitlines() if "|" in line}
    assert len(widths) == 1


def test_csv_has_every_value() -> None:
    rows = list(csv.DictReader(io.StringIO(results_csv(result()))))
    assert len(rows) == 8
    assert rows[4] == {
        "table": "t", "row": "0.5 <b>|", "seed": "0", "metric": "top1", "value": "0.7"
    }  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"axis": "lambda"}, {"series": True}])
def test_figures_are_valid_and_escaped(options: dict[str, object]) -> None:
    text = figure.draw(result(**options))  # type: ignore[arg-type]
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


def test_every_row_of_every_table_has_settings_that_exist() -> None:
    for table in TABLES.values():
        for row in table.rows:
            config.load(overrides=row.overrides)
            assert row.baseline is None or row.baseline in BASELINES
            assert not table.axis or row.x is not None
    labels = [row.label for row in TABLES["main"].rows]
    assert {"Vanilla", "MoPro", "VSGraph", "CAPro", "CAPro + mix-up"} <= set(labels)
    providers = {row.overrides[0].partition("=")[2] for row in TABLES["reference"].rows}
    assert providers == {
        "none", "mixup", "bootstrap", "smoothing", "scc", "ncr", "cb", "cb+mixup"
    }  # fmt: skip


def test_unknown_table() -> None:
    with pytest.raises(ConfigError, match="no table 'gama'") as error:
        table_of("gama")
    assert "gamma" in error.value.hint


def test_cost_table() -> None:
    parts = [Part("encoder", 25_000_000, 3.8), Part("step 2", seconds=10.0, epochs=5)]
    text = cost_markdown("Cost", parts, 100, "capro bench cost")
    assert "| encoder | 25.0 M | 3.8 |  |  |" in text
    assert "| step 2 |  |  | 10.0 | 2.00 |" in text
    assert csv_text(Part._fields, parts).splitlines()[1] == "encoder,25000000,3.8,,"


def test_rows_of_the_method_are_the_papers_whatever_the_preset():
    for table in TABLES.values():
        for row in table.rows:
            if row.baseline is None:
                for preset in ("small", "small-multi"):
                    settings = config.load(preset_name=preset, overrides=row.overrides)
                    assert settings.train.text_weight == 0, (table.name, row.label)
                    assert settings.finetune.balance is None, (table.name, row.label)
