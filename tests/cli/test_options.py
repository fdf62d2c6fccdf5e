"""Options that commands share: those of the data come from the settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from capro import config
from capro.cli import app
from capro.cli.options import data_overrides, with_memory
from capro.config import DataSettings

COMMANDS: Any = get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in DataSettings.model_fields if name != "source"}
VALUES = {"subset": "mini", "format": "table", "encoding": "cp1252"}  # those that are not free text
NUMBERS = {"max_nesting": 7, "max_group_rows": 8}
FLAGS = [name for name, field in DataSettings.model_fields.items() if field.annotation is bool]


@pytest.mark.parametrize("command", ["scan", "run", "bench", "doctor"])
def test_every_setting_of_the_data_is_an_option_with_its_description(command: str) -> None:
    found = {each.name: each for each in COMMANDS[command].params}
    for name, option in OPTIONS.items():
        assert found[name].opts == [option]
        description = DataSettings.model_fields[name].description or ""
        assert found[name].help.lower().startswith(description.lower())
    assert "google" in found["subset"].help  # what may be given


def test_every_option_of_scan_reaches_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    from capro.pipeline.plan import Plan
    from capro.pipeline.run import Run

    class Stop(Exception):
        pass

    def do(_plan: Plan, run: Run, *_names: str, **_options: object) -> None:
        seen.append(run.settings.data)
        raise Stop

    seen: list[DataSettings] = []
    monkeypatch.setattr(Plan, "do", do)
    monkeypatch.setattr("capro.cli.options.check_named_files", lambda *_: None)
    given = VALUES | NUMBERS
    words = [
        part
        for name, option in OPTIONS.items()
        for part in ([option] if name in FLAGS else [option, str(given.get(name, f"[{name}: 1"))])
    ]
    with pytest.raises(Stop):
        app(["scan", "a b", "--run", "r", "--set", "data.test=x", *words], standalone_mode=False)
    wanted = {name: given.get(name, f"[{name}: 1") for name in OPTIONS} | dict.fromkeys(FLAGS, True)
    assert seen[0].model_dump() == {"source": "a b", **wanted}  # an option wins over --set


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_an_option_is_taken_as_it_is(text: str) -> None:
    assert config.load(overrides=data_overrides({"label_separator": text})).data.label_separator == text


@pytest.mark.parametrize(
    ("text", "gigabytes"), [("4GB", 4), ("4", 4), ("1.5 GiB", 1.5), ("512mb", 0.5), ("2T", 2048)]
)
def test_memory_becomes_the_setting(text: str, gigabytes: float) -> None:
    assert config.load(overrides=with_memory(None, text)).match.memory_gb == gigabytes
