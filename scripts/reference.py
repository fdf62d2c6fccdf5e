"""Tables of commands, settings and presets from the program itself: `make site` puts them into docs/reference.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml
from typer.main import get_command

from capro import config
from capro.cli import app

COMMANDS, SETTINGS, PRESETS = "<!-- commands -->", "<!-- settings -->", "<!-- presets -->"


def filled(page: str) -> str:
    """docs/reference.md with tables of all commands, settings and presets in place of its marks."""
    for mark, lines in ((COMMANDS, _commands()), (SETTINGS, _settings()), (PRESETS, _presets())):
        assert page.count(mark) == 1, mark
        page = page.replace(mark, "\n".join(lines).strip())
    return page


@cache
def commands() -> dict[str, Any]:
    """Every command by its full name, in the order of ``--help``."""
    return dict(_members(get_command(app), "capro"))


def _members(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _members(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _commands() -> Iterator[str]:
    for name, command in commands().items():
        yield f"### {name}\n"
        yield " ".join((command.help or "").split()) + "\n"
        rows = [_parameter(each) for each in command.params if each.name != "help"]
        if rows:
            yield from _table(["option", "meaning"], rows)


def _parameter(parameter: Any) -> list[str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    argument = parameter.param_type_name == "argument"
    shown = str(parameter.name).upper() if argument else ", ".join(names)
    takes = "" if argument or parameter.is_flag else " ..."
    needed = " Required." if parameter.required else ""
    return [f"`{shown}{takes}`", (parameter.help or "") + needed]


def _settings() -> Iterator[str]:
    yield f"`seed` (default {config.Settings().seed}): {_meaning(config.Settings, 'seed')}.\n"
    for stage, kind in config.sections().items():
        yield f"### {stage}\n"
        yield (kind.__doc__ or "").splitlines()[0] + "\n"
        default = kind()
        rows = [
            [f"`{stage}.{name}`", f"`{_value(getattr(default, name))}`", _meaning(kind, name)]
            for name in kind.model_fields
        ]
        yield from _table(["setting", "default", "meaning"], rows)


def _presets() -> Iterator[str]:
    names = config.preset_names()
    presets = {name: config.preset(name) for name in names}
    rows = []
    for stage, kind in config.sections().items():
        for key in kind.model_fields:
            given = [presets[name].get(stage, {}).get(key) for name in names]
            if any(value is not None for value in given):
                cells = ["-" if value is None else f"`{_value(value)}`" for value in given]
                rows.append([f"`{stage}.{key}`", *cells])
    yield from _table(["setting", *names], rows)


def _meaning(kind: type[config.Section], name: str) -> str:
    return kind.model_fields[name].description or ""


def _value(value: Any) -> str:
    return yaml.safe_dump(value, width=1000).split("\n")[0]


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
    yield ""
