"""Rows of the tables."""

from __future__ import annotations

import pytest

from capro import config
from capro.bench.baselines import BASELINES
from capro.bench.grids import TABLES, table_of
from capro.errors import ConfigError


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


def test_rows_of_the_method_are_the_papers_whatever_the_preset():
    for table in TABLES.values():
        for row in table.rows:
            if row.baseline is None:
                for preset in ("small", "small-multi"):
                    settings = config.load(preset_name=preset, overrides=row.overrides)
                    assert settings.train.text_weight == 0, (table.name, row.label)
                    assert settings.finetune.balance is None, (table.name, row.label)
