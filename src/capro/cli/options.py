"""Options that commands share, and what becomes of them: settings and an open run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from capro.config import DataSettings
from capro.data.readers import FORMATS, on_hub
from capro.errors import ConfigError

if TYPE_CHECKING:
    from capro.config import Settings
    from capro.run.directory import Run

# the forms that every version of typer reads
Text = Optional[str]  # noqa: UP045
Texts = Optional[list[str]]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045

RunFolder = Annotated[Path, typer.Option("--run", help="Run directory.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
RunArgument = Annotated[OptionalPath, typer.Argument(metavar="RUN", help="Run directory.")]
RunOption = Annotated[OptionalPath, typer.Option("--run", help="Run directory, if not given as RUN.")]
Overrides = Annotated[Texts, typer.Option("--set", help="Override a setting: train.gamma=0.4")]
Preset = Annotated[
    Text, typer.Option("--preset", help="webvision1k, google500, nuswide, small, small-multi or demo.")
]
Memory = Annotated[
    Text, typer.Option("--memory", help="Memory for the graph, say 4GB; wins over match.memory_gb.")
]
Source = Annotated[Text, typer.Option("--data", help="Source: wins over data.source.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is fresh.")]
NewFolder = Annotated[Path, typer.Option("--out", help="A folder that does not exist yet.")]

NO_OPTION = {"source", "subset", "class_list", "classes"}  # the argument, and what --set is for


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an option for every setting of the data; it gets them as one mapping, ``data``."""

    def called(**given: Any) -> None:
        data = {name: given.pop(name) for name in names}
        command(data={key: value for key, value in data.items() if value is not None}, **given)

    names = [name for name in DataSettings.model_fields if name not in NO_OPTION]
    own = [*inspect.signature(command, eval_str=True).parameters.values()]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Text, typer.Option(help=_sentence(name))],
        )
        for name in names
    ]
    first = [p for p in own if p.default is p.empty and p.name != "data"]
    rest = [p for p in own if p.default is not p.empty]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*first, *rest)]
    parameters = [*keyword[: len(first)], *options, *keyword[len(first) :]]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__doc__, called.__name__ = command.__doc__, command.__name__
    return called


def _sentence(name: str) -> str:
    text = DataSettings.model_fields[name].description or ""
    text += f": {', '.join(FORMATS)}" if name == "format" else ""
    return text[:1].upper() + text[1:] + "."


def one_run(path: Path | None, option: Path | None) -> Path:
    """The run directory, given as an argument or with --run."""
    if (path is None) == (option is None):
        raise ConfigError("give one run directory", hint="as an argument, or with --run")
    return path or option or Path()


def open_run(path: Path, overrides: list[str] | None = None) -> Run:
    """An existing run, with overrides written into its settings."""
    from capro import config
    from capro.run.directory import Run

    run = Run.open(path)
    return run.with_settings(config.update(run.settings, overrides)) if overrides else run


def with_memory(overrides: list[str] | None, memory: str | None) -> list[str] | None:
    """Overrides with ``--memory`` among them: 4GB, 512MB, or a number of gigabytes.

    >>> with_memory(["seed=1"], "512MB")
    ['seed=1', 'match.memory_gb=0.5']
    """
    if memory is None:
        return overrides
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?)?", memory.strip(), re.IGNORECASE)
    gigabytes = 0.0
    if found:
        gigabytes = float(found[1]) * 1024.0 ** ("KMGT".index((found[2] or "G").upper()) - 2)
    if gigabytes <= 0:
        raise ConfigError(f"--memory {memory!r}: not an amount of memory", hint="--memory 4GB")
    return [*(overrides or []), f"match.memory_gb={gigabytes:g}"]


def settings_with_data(
    file: Path | None, preset: str | None, overrides: list[str] | None, data: dict[str, Any]
) -> Settings:
    """Settings from file, preset and overrides, with what the command's options say of the data."""
    from capro import config

    settings = config.load(file, preset_name=preset, overrides=overrides or [])
    merged = settings.model_dump()
    merged["data"] |= {key: value for key, value in data.items() if value is not None}
    return config.validate(merged, place="options")


def check_source(settings: Settings) -> None:
    """Refuse a source that is not there before anything is written; the hub answers later."""
    from capro.stages.scan import find_sources

    if not on_hub(settings.data, str(settings.data.source)):
        find_sources(settings.data)
