"""Renders docs/reference.md from the command line and the settings themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from typer.main import get_command

from capro import config
from capro.cli import app

HEAD = """\
# Reference

Written by `python scripts/check_docs.py --write` from the program itself: change the help texts and
the descriptions of settings, not this page. `capro COMMAND --help` and `capro config show` print the
same.
"""


def commands(group: Any = None, prefix: str = "capro") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, in the order of ``--help``."""
    group = group or get_command(app)
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_commands(), *_settings(), *_presets()]).rstrip() + "\n"


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    yield (
        "Data goes to stdout, everything else to stderr. Exit codes: 0 done, 2 a mistake in the "
        "input or the settings (`error:` and `hint:` say which), 130 interrupted, 1 a bug in "
        "capro.\n"
    )
    for name, command in commands():
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
    yield "## Settings\n"
    yield (
        "A later one replaces an earlier one: default, preset, settings file, `--set stage.name=value`. "
        "The defaults are those of the preset `paper`.\n"
    )
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
    yield "## Presets\n"
    yield "A setting that a preset does not name (-) has its default.\n"
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
