"""Rows of the tables."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from capro import config
from capro.bench import published
from capro.bench.baselines.registry import BASELINES
from capro.bench.grids import PINNED, PRESETS_DECIDE, TABLES, GridRow, Table, row_settings, table_of
from capro.config import Settings
from capro.errors import ConfigError

ROWS = [(table, row) for table in TABLES.values() for row in table.rows]


def settings(row: GridRow, preset: str | None) -> Settings:
    return config.load(preset_name=preset, overrides=row.overrides)


def row_of(table: str, label: str) -> GridRow:
    return next(row for row in TABLES[table].rows if row.label == label)


def test_every_row_of_every_table_has_settings_that_exist() -> None:
    for table, row in ROWS:
        config.load(overrides=row.overrides)
        assert row.baseline is None or row.baseline in BASELINES
        assert not table.axis or row.x is not None
    assert {"Vanilla", "CAPro", "CAPro + mix-up"} <= {row.label for row in TABLES["main"].rows}
    providers = {settings(row, None).train.reference for row in TABLES["reference"].rows}
    assert providers == {
        "none", "mixup", "bootstrap", "smoothing", "scc", "ncr", "cb", "cb+mixup"
    }  # fmt: skip


def test_settings_of_rows_do_not_depend_on_the_preset() -> None:
    """Every setting of a row is the same with every preset, but for those that all rows of a table share."""
    for table, row in ROWS:
        if row.product:
            continue
        plain = settings(row, None)
        for preset in config.preset_names():
            for name in config.differences(plain, settings(row, preset)):
                allowed = any(fnmatch(name, pattern) for pattern in PRESETS_DECIDE)
                assert allowed, f"{table.name}, {row.label}: {name} is the preset {preset}'s"


def names(settings: Settings) -> list[str]:
    found = []
    for section, values in settings.model_dump().items():
        found += [f"{section}.{name}" for name in values] if isinstance(values, dict) else [section]
    return found


def test_every_setting_is_pinned_or_a_presets() -> None:
    """What presets do not decide is pinned."""
    for name in names(config.load()):
        decided = any(fnmatch(name, pattern) for pattern in PRESETS_DECIDE)
        assert decided != (name in PINNED), f"{name}: presets decide {decided}"
    given = config.load(preset_name="small-multi")
    assert (given.net.centred, given.finetune.centred) == (True, True)  # what follows is not so by itself
    found = settings(row_of("main", "CAPro"), "small-multi")
    assert (found.net.centred, found.finetune.centred, found.match.own_neighbour) == (False, False, False)


def test_rows_of_the_paper_correct_no_label_before_an_epoch_of_step_2() -> None:
    """`small` corrects at once since its heads know the anchors; rows of the paper start from step 1."""
    small, capro = config.load(preset_name="small"), row_of("main", "CAPro").overrides
    assert small.train.correct_after == 0
    assert row_settings(small, capro).train.correct_after == 1  # a sixth of 8 epochs
    longer = config.update(small, ["train.epochs=30"])
    assert row_settings(longer, capro).train.correct_after == 5
    assert row_settings(config.update(small, ["train.epochs=1"]), capro).train.correct_after == 0
    assert row_settings(small, ()) == small  # the product's row
    google = config.load(preset_name="google500")
    assert row_settings(google, capro).train.correct_after == 20


def test_no_row_has_a_setting_that_presets_decide_but_that_of_its_own_axis() -> None:
    for table, row in ROWS:
        own = {override.partition("=")[0] for override in row.overrides}
        decided = {name for name in own if any(fnmatch(name, pattern) for pattern in PRESETS_DECIDE)}
        assert decided == ({"train.gamma"} if table.name == "gamma" else set())


def test_rows_of_the_method_are_the_papers() -> None:
    for preset in ("small", "small-multi"):
        for _, row in ROWS:
            if row.product:
                continue
            found = settings(row, preset)
            assert found.method == "paper"
            assert found.match.contrast == found.match.random_share == 0
            assert (found.train.start, found.train.bts_classifier) == ("web", False)
            assert found.finetune.balance is None
        capro = settings(row_of("main", "CAPro"), preset)
        assert (capro.match.enhancer, capro.match.anchors, capro.match.top_k) == ("reciprocal", "text", 50)
        assert (capro.train.reference, capro.train.lambda_bts, capro.train.policy) == ("cb", 0.1, "capro")
        for row in TABLES["gamma"].rows:  # the figures beside them are of this smoothing
            found = settings(row, preset)
            assert (found.match.enhancer, found.train.reference) == ("knn", "none")


def test_a_product_row_is_the_preset_itself() -> None:
    products = [row for row in TABLES["main"].rows if row.product]
    assert len(products) == 1
    assert settings(products[0], "small") == config.load(preset_name="small")
    named = TABLES["main"].with_product("capro, preset small")
    assert [row.label for row in named.rows if row.product] == ["capro, preset small"]


def test_rows_carry_no_other_systems_name() -> None:
    """A row that is called by another system's name is a baseline; ablations of CAPro say what they are."""
    systems = [label for label in published.MAIN if not label.startswith("CAPro")]
    assert {"MoPro", "VSGraph", "MILe", "Multimodal"} <= set(systems)
    for table, row in ROWS:
        named = any(row.label.startswith(system) for system in systems)
        if named and table.name in ("main", "openset"):
            assert row.baseline is not None, row.label
        elif named:  # a provider or a rule by the name of who proposed it, in a table of such parts
            assert table.name in ("reference", "cost", "policy"), row.label
        if table.name == "text":
            assert not row.label.endswith("VSGraph"), row.label


def test_every_system_of_the_papers_tables_is_a_row() -> None:
    assert set(published.MAIN) <= {row.label for row in TABLES["main"].rows}
    assert set(published.OPENSET) <= {row.label for row in TABLES["openset"].rows}
    for name in ("main", "openset"):
        shown = {row.label: row.paper for row in TABLES[name].rows if row.paper}
        assert shown == (published.MAIN if name == "main" else published.OPENSET)


def test_weights_are_set_to_zero_one_by_one() -> None:
    rows = {row.label: settings(row, None) for row in TABLES["weights"].rows}
    for name in ("pro", "ins", "prj"):
        changed = config.differences(rows["all 1"], rows[f"lambda_{name} 0"])
        assert set(changed) == {f"train.lambda_{name}"} | (
            {"pretrain.lambda_prj"} if name == "prj" else set()
        )


def test_pinned_settings() -> None:
    assert "match.contrast" in PINNED
    assert "train.lambda_bts" in PINNED
    assert not {"pretrain.lr", "train.epochs"} & set(PINNED)


def test_unknown_table() -> None:
    with pytest.raises(ConfigError, match="no table 'gama'") as error:
        table_of("gama")
    assert "gamma" in error.value.hint


def test_a_table_needs_the_row_it_compares_with() -> None:
    with pytest.raises(ValueError, match="compared with b"):
        Table("t", "T", (GridRow("a"),), against="b")
