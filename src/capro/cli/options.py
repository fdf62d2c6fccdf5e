"""Options that commands share, and what becomes of them: settings and an open run."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
import yaml

from capro import config
from capro.config import DataSettings
from capro.data.readers import FORMATS
from capro.errors import ConfigError
from capro.stores import any_path, local_path

if TYPE_CHECKING:
    from capro.config import Settings
    from capro.pipeline.run import Run
    from capro.stages.start import Choose, Resolve

NAMING_FILES = {
    "data.class_list",
    "data.classes",
    "data.ambiguous_list",
    "data.image_root",
    "baselines.verified",
}

# texts, since a path would make s3:/ of s3://
RunFolder = Annotated[str, typer.Option("--run", metavar="PATH", help="Run directory.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")]
RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", help="Run directory.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="PATH", help="Run directory, if it is not given as RUN.")
]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: train.gamma=0.4")]
ReadingOverrides = Annotated[
    list[str] | None, typer.Option("--set", help="How the data of --on are read: data.label_column=query")
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="small, photo, good, clip, each also as NAME-multi, paper, webvision1k, google500, nuswide, scratch.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", help="Memory for the graph, for example 4GB; replaces match.memory_gb."),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="What does the work; process: this process; ray: tasks on a Ray cluster (docs/distributed.md).",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Address of the Ray cluster: auto, HOST:PORT, or local, which starts one on this machine.",
    ),
]
SourceOption = Annotated[str | None, typer.Option("--data", help="Source of the data; replaces data.source.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Do the stage again even if nothing has changed.")]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", help="Do not ask before half an hour of work, or decisions of a person, are replaced."
    ),
]
LicenseName = Annotated[
    str | None,
    typer.Option(
        "--license", help="Licence for the model card or data card, in the hub's spelling: cc-by-4.0."
    ),
]
NewFolder = Annotated[str, typer.Option("--out", metavar="PATH", help="A folder that does not exist yet.")]


def local_only(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """The value of an option that cannot be an address: as a path it has become s3:/bucket."""
    address = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])", str(path))
    if address is None:
        return path
    return local_path(f"{address[1]}://{str(path)[address.end() :]}", option.opts[0])


def local_file(*names: str, help: str) -> Any:
    """An option for a file on this machine."""
    return typer.Option(*names, callback=local_only, help=help)


SettingsFile = Annotated[Path | None, typer.Argument(callback=local_only, help="YAML file with settings.")]


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an option for every setting of the data but its source.

    The command gets them among its overrides: ``--test DIR`` is ``--set data.test=DIR``.
    """
    names = [name for name in DataSettings.model_fields if name != "source"]
    signature = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(name))
        for name in names
    ]

    @wraps(command)
    def called(**given: Any) -> None:
        data = {name: given.pop(name) for name in names}
        command(**given | {"set_": [*(given["set_"] or []), *data_overrides(data)]})

    parameters = [*signature.parameters.values(), *options]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def _option(name: str) -> Any:
    """A setting as an option: a flag, or a text that the settings check."""
    if DataSettings.model_fields[name].annotation is bool:
        flag = typer.Option(f"--{name.replace('_', '-')}", help=_sentence(name))
        return Annotated[bool | None, flag]
    return Annotated[str | None, typer.Option(help=_sentence(name))]


def _sentence(name: str) -> str:
    field = DataSettings.model_fields[name]
    text = field.description or ""
    if get_origin(field.annotation) is Literal:
        text += f" ({', '.join(get_args(field.annotation))})"
    text += f": {', '.join(FORMATS)}" if name == "format" else ""
    return text[:1].upper() + text[1:] + "."


def data_overrides(data: Mapping[str, str | bool | None]) -> list[str]:
    """Overrides for what was given of the data's settings, quoted: a value may look like YAML.

    >>> data_overrides({"test": None, "label_separator": ";"})
    ['data.label_separator=";"']
    """
    given = {name: value for name, value in data.items() if value is not None}
    quoted = {name: yaml.safe_dump(value, default_style='"', width=math.inf) for name, value in given.items()}
    return [f"data.{name}={text.strip()}" for name, text in quoted.items()]


def with_memory(overrides: list[str] | None, memory: str | None) -> list[str]:
    """Overrides with ``--memory`` among them: 4GB, 512MB, or a number of gigabytes.

    >>> with_memory(["seed=1"], "512MB")
    ['seed=1', 'match.memory_gb=0.5']
    """
    if memory is None:
        return overrides or []
    amount = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?)?", memory.strip(), re.IGNORECASE)
    gigabytes = 0.0
    if amount:
        gigabytes = float(amount[1]) * 1024.0 ** ("KMGT".index((amount[2] or "G").upper()) - 2)
    if gigabytes <= 0:
        raise ConfigError(f"--memory {memory!r}: not an amount of memory", hint="--memory 4GB")
    return [*(overrides or []), f"match.memory_gb={gigabytes:g}"]


def start_run(
    path: str | Path,
    source: str | None,
    overrides: list[str] | None,
    *,
    file: Path | None = None,
    preset: str | None = None,
) -> tuple[Run, Choose | None]:
    """A run, new or existing, and what chooses a preset after the scan where it is new and none was named."""
    from capro.pipeline.working_copy import run_folder
    from capro.stages.start import start

    preset = config.named_preset(file, preset)
    return start(run_folder(path), resolver(source, overrides, file=file), preset)


def resolver(source: str | None, overrides: list[str] | None, *, file: Path | None = None) -> Resolve:
    """What makes settings of a command's options; a file that they name and that is not there is refused."""
    given = [*(overrides or []), *data_overrides({"source": source})]

    def resolve(base: Mapping[str, Any], preset: str | None) -> Settings:
        settings = config.load(file, preset_name=preset, overrides=given, base=base)
        check_named_files(config.load(base=base), settings)
        return settings

    return resolve


def check_named_files(old: Settings, new: Settings) -> None:
    """Refuse a changed setting that names a file which is not there; the data are looked at before a scan."""
    for name in config.differences(old, new):
        value = config.value_of(new, name)
        if name in NAMING_FILES and value and not value.startswith("run:") and not any_path(value).exists():
            raise ConfigError(f"{name}: {value}: no such file", hint="check the path")


def one_run(path: str | None, option: str | None) -> str:
    """The run directory, given as an argument or with --run."""
    if (path is None) == (option is None):
        raise ConfigError("give one run directory", hint="give it as an argument, or with --run, not both")
    return path or option or "."


def open_run(path: str, overrides: list[str] | None = None) -> Run:
    """An existing run, with overrides on its settings, which are written before its stages are done."""
    from capro.pipeline.run import Run
    from capro.pipeline.working_copy import run_folder

    run = Run.open(run_folder(path))
    if not overrides:
        return run
    settings = config.update(run.settings, overrides)
    check_named_files(run.settings, settings)
    return run.with_settings(settings)


def settings_for_reading(run: Run, overrides: list[str] | None, on: str | None) -> Settings:
    """Settings by which other data are read; those of the run itself do not change."""
    settings = config.update(run.settings, overrides or [])
    for name in config.differences(run.settings, settings):
        if on is None or name.partition(".")[0] not in ("data", "scan"):
            given = shlex.quote(config.override(settings, name))
            raise ConfigError(
                f"--set {name}: `capro evaluate` changes no setting of a run",
                hint=f"`capro run --run {shlex.quote(run.place)} --set {given}` changes it for the run",
            )
    return settings
