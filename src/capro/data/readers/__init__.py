"""Formats of data. Each is a module of this package with a ``FORMAT``: how a source is recognised, read and
written. ``find`` recognises a source.

A new format is a new module and a line in ``FORMATS``. No module is imported before it is needed, since the
command line takes the names for its help from here.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from capro.config import DataSettings
from capro.errors import ConfigError, DataError, did_you_mean
from capro.stores import AnyPath, ObjectPath, any_path

if TYPE_CHECKING:
    from capro.data.readers.base import Format, Reader, Writer

# The module of each format, and the names under which an export writes it. The first one that recognises a
# source reads it.
FORMATS: dict[str, tuple[str, ...]] = {
    "hub": (),
    "webvision": (),
    "nuswide": (),
    "tars": ("webdataset",),
    "fiftyone": ("fiftyone",),
    "table": ("csv", "parquet", "hf"),
    "folder": ("folder",),
}
WRITERS = {name: module for module, names in FORMATS.items() for name in names}  # for --to
SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def load_format(name: str) -> Format:
    """A format by its name for ``--format``."""
    if name not in FORMATS:
        raise ConfigError(f"data.format: no format {name!r}", hint=did_you_mean(name, ("auto", *FORMATS)))
    loaded: Format = import_module(f"{__name__}.{name}").FORMAT
    return loaded


def load_writer(name: str) -> Writer:
    """A writer by its name for ``--to``."""
    if name not in WRITERS:
        raise ConfigError(f"no format {name!r}", hint=did_you_mean(name, WRITERS))
    return load_format(WRITERS[name]).writers[name]


def on_hub(settings: DataSettings, source: str) -> bool:
    """Whether a source is the name of a dataset, not a path."""
    return settings.format == "hub" or source.startswith("hub:")


def recognise(path: AnyPath, settings: DataSettings) -> Format | None:
    """The format of a path: the one asked for, if it is laid out so, else the first that recognises it.

    A file always has its format by its name: the test set may be in another one than the training set.
    """
    names = FORMATS if settings.format == "auto" or path.is_file() else [settings.format]
    stored = isinstance(path, ObjectPath)
    formats = (each for each in map(load_format, names) if each.in_stores or not stored)
    return next((each for each in formats if each.recognises(path, settings)), None)


def find(settings: DataSettings, *, source: str, split: str | None = None) -> list[Reader]:
    """The readers of a source: one per split where the layout names splits.

    Args:
        settings: Format and columns.
        source: Path, address of an object store, or ``hub:NAME``.
        split: Put every row into this split, whatever the layout is.
    """
    if on_hub(settings, source):
        return [*load_format("hub").readers(Path(source.removeprefix("hub:")), settings, split)]
    path = any_path(source)
    if not path.exists():
        raise DataError(f"{source}: no such file or folder", hint="check the path to the data")
    if not path.is_file() and not path.is_dir():
        raise DataError(f"{source}: neither a file nor a folder", hint="give a folder, or a table's own file")
    named = None if settings.format == "auto" else load_format(settings.format)
    recognised = recognise(path, settings)
    own_splits = any(each and each.own_splits for each in (named, recognised))
    if path.is_dir() and not own_splits and (split is None or (path / "train" / "metadata.csv").is_file()):
        if split is None:
            _refuse_subsets(settings, source)
        parts = _split_folders(path)
        if parts and (
            split is None or len(parts) == 1
        ):  # one: an export, read as the split that was asked for
            each = [find(settings, source=str(part), split=split or name) for name, part in parts]
            return [reader for readers in each for reader in readers]
    if recognised is None:
        raise _unreadable(path, settings.format, named)
    return [*recognised.readers(path, settings, split)]


def find_to_evaluate(settings: DataSettings, source: str) -> list[Reader]:
    """The readers of a source to evaluate on: its test part where it names one, else all of it."""
    from capro.data.readers.table import TableReader, parquet_splits

    path = any_path(source)
    if (path / "train").is_dir() and (path / "test").is_dir():
        return find(settings, source=str(path / "test"), split="test")
    shards = parquet_splits(path) if path.is_dir() else {}
    if "test" in shards:
        return [TableReader(shards["test"], settings, "test")]
    return find(settings, source=source, split="test")


def _refuse_subsets(settings: DataSettings, source: str) -> None:
    """Settings for WebVision alone, where the source is something else."""
    for name, is_set in (("subset", settings.subset != "all"), ("class_list", settings.class_list)):
        if is_set:
            raise ConfigError(
                f"data.{name} is for WebVision, and {source} does not have its layout",
                hint=f"leave data.{name} out, or give the folder that holds info/synsets.txt",
            )


def _split_folders(path: AnyPath) -> list[tuple[str, AnyPath]]:
    """Subfolders called train, val, test, if these are all there are: a class may be called train."""
    from capro.data.readers.folder import METADATA

    inside: list[AnyPath] = [*path.iterdir()]
    if any(child.name in METADATA for child in inside):
        return []
    folders = [child for child in inside if child.is_dir() and not child.name.startswith(".")]
    splits = [(SPLIT_FOLDERS.get(child.name.lower(), ""), child) for child in sorted(folders)]
    names = [name for name, _ in splits]
    if "train" not in names or "" in names:
        return []
    return sorted(splits, key=lambda item: ("train", "val", "test").index(item[0]))


def _unreadable(path: AnyPath, name: str, named: Format | None) -> DataError:
    if named and path.is_dir():
        return DataError(f"{path}: does not have the layout of {name}", hint=named.layout)
    if isinstance(path, ObjectPath) and path.is_dir():
        return DataError(
            f"{path}: no .tar shards and no files called train-00000-of-00001.parquet in this folder",
            hint="put shards, Parquet files or a table there, or copy the data to a disk first",
        )
    compressed = path.name.lower().endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst"))
    hint = "give a folder, a .csv, .tsv, .jsonl or .parquet table, or .tar shards"
    if compressed:
        hint = "decompress it to a plain .tar first, for example with gunzip"
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        hint = "save the sheet as CSV, and give the .csv file"
    return DataError(f"{path}: not a source that capro can read", hint=hint)
