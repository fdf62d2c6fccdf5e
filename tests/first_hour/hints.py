"""What a command prints for the reader to do: the commands, settings and options in it."""

from __future__ import annotations

import re
import shlex
from typing import Any

from typer.main import get_command

from capro import config
from capro.cli import app
from capro.errors import ConfigError


def commands(text: str, **values: str) -> list[list[str]]:
    """Commands to copy, without their first word: between backticks, or on a line of their own.

    >>> commands("run `capro report RUN` first\\n  capro doctor r  what is wrong", RUN="my run")
    [['report', 'my run'], ['doctor', 'r']]
    """
    found = re.findall(r"`capro ([^`]+)`|^  capro (.+?)(?:  .*)?$", text, re.MULTILINE)
    split = [shlex.split(quoted or plain) for quoted, plain in found]
    return [[values.get(word, word) for word in words] for words in split]


def wrong_hints(text: str) -> list[str]:
    """Settings and options in a text that do not exist.

    >>> wrong_hints("--set train.gama=0.4, or --labl-column X, or --set data.classes=COPY")
    ["--set train.gama=0.4: settings: unknown setting 'train.gama'", '--labl-column']
    """
    found = []
    for assigned in re.findall(r"--set ([\w.]+=[^\s,;:)]+)", text):
        try:
            config.load(overrides=[assigned])
        except ConfigError as error:
            found.append(f"--set {assigned}: {error}")
    known = _options(get_command(app))
    return found + [option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text) if option not in known]


def _options(command: Any) -> set[str]:
    """Every option of a command and of those below it."""
    here = {option for each in command.params for option in each.opts}
    return here.union(*(_options(each) for each in getattr(command, "commands", {}).values()))
