"""Readers: from a source's layout to rows. ``find`` recognises the layout.

A reader yields every row of its source, in a stable order, problems included; it never drops one.
"""

from __future__ import annotations

from pathlib import Path

from capro.config import DataSettings
from capro.data.manifest import SPLITS
from capro.data.readers.base import Reader
from capro.data.readers.fiftyone import FiftyOneReader, is_fiftyone
from capro.data.readers.folder import METADATA, FolderReader
from capro.data.readers.hub import HubReader
from capro.data.readers.nuswide import is_nuswide, nuswide_readers
from capro.data.readers.table import TableReader, parquet_splits
from capro.data.readers.tars import TarReader
from capro.data.readers.webvision import (
    ImageNetReader,
    Info,
    is_imagenet_validation,
    is_webvision,
    webvision_readers,
)
from capro.errors import ConfigError, DataError

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def find(settings: DataSettings, *, source: str, split: str | None = None) -> list[Reader]:
    """The readers of a source: one per split where the layout names splits.

    Args:
        settings: Format and columns.
        source: Path or ``hub:NAME``.
        split: Put every row into this split, whatever the layout says.
    """
    if settings.format == "hub" or source.startswith("hub:"):
        return [HubReader(source.removeprefix("hub:"), settings, split)]
    path = Path(source)
    if not path.exists():
        raise DataError(f"{source}: no such file or folder", hint="check the path to the data")
    if path.is_file():
        return [_file_reader(path, settings, split or "train")]
    published = _published(path, settings, split)
    if published:
        return published
    if split is None and (settings.subset != "all" or settings.class_list):
        name = "subset" if settings.subset != "all" else "class_list"
        raise ConfigError(
            f"data.{name} is for WebVision, and {source} is not laid out like it",
            hint=f"leave data.{name} out, or give the folder that holds info/synsets.txt",
        )
    if split is None:
        named = _split_folders(path)
        if named:
            return [
                reader for name, folder in named for reader in find(settings, source=str(folder), split=name)
            ]
    return _folder_readers(path, settings, split)


def find_to_evaluate(settings: DataSettings, source: str) -> list[Reader]:
    """The readers of a source to evaluate on: its test part where it names one, else all of it."""
    path = Path(source)
    if path.is_dir():
        if (path / "train").is_dir() and (path / "test").is_dir():
            return find(settings, source=str(path / "test"), split="test")
        shards = parquet_splits(path)
        if "test" in shards:
            return [TableReader(shards["test"], settings, "test")]
    return find(settings, source=source, split="test")


def _published(path: Path, settings: DataSettings, split: str | None) -> list[Reader]:
    """Readers of a tree in a published layout: WebVision, NUS-WIDE, ImageNet beside WebVision."""
    kind = settings.format
    known = {"webvision": is_webvision, "nuswide": is_nuswide}
    main = Path(settings.source) if settings.source else None
    if split == "test" and main is not None and main != path and is_webvision(main):
        classes = Path(settings.class_list) if settings.class_list else None
        if kind in ("auto", "webvision") and is_imagenet_validation(path):
            return [ImageNetReader(path, Info(main, settings.subset, classes))]
    if kind in ("auto", "webvision") and is_webvision(path):
        return [*webvision_readers(path, settings, split)]
    if kind in ("auto", "nuswide") and is_nuswide(path):
        return [*nuswide_readers(path, split)]
    if kind in known:
        raise DataError(
            f"{path}: not laid out as {kind}", hint=f"docs/{kind}.md shows the files that must be there"
        )
    return []


def _split_folders(path: Path) -> list[tuple[str, Path]]:
    """Subfolders called train, val, test, if these are all there are: a class may be called train."""
    if any((path / name).exists() for name in METADATA):
        return []
    folders = [child for child in sorted(path.iterdir()) if child.is_dir()]
    folders = [child for child in folders if not child.name.startswith(".")]
    found = [(SPLIT_FOLDERS.get(child.name.lower(), ""), child) for child in folders]
    names = [name for name, _ in found]
    if "train" not in names or "" in names:
        return []
    return sorted(found, key=lambda item: SPLITS.index(item[0]))


def _folder_readers(path: Path, settings: DataSettings, split: str | None) -> list[Reader]:
    if settings.format in ("auto", "tars") and any(path.glob("*.tar")):
        return [TarReader(path, settings, split or "train")]
    if settings.format == "auto" and is_fiftyone(path):
        return [FiftyOneReader(path, settings, split or "train")]
    if settings.format == "tars":
        raise DataError(f"{path}: no .tar file in it", hint="give the folder with the shards")
    if settings.format in ("auto", "table"):
        shards = parquet_splits(path)
        if shards:
            wanted = {split: [f for fs in shards.values() for f in fs]} if split else shards
            return [TableReader(files, settings, name) for name, files in wanted.items()]
    if settings.format == "table":
        raise DataError(f"{path}: no SPLIT-00000-of-00001.parquet file in it", hint="give the table itself")
    return [FolderReader(path, settings, split or "train")]


def _file_reader(path: Path, settings: DataSettings, split: str) -> Reader:
    name = path.name.lower()
    if name.endswith(".tar"):
        return TarReader(path, settings, split)
    if name.endswith(TABLES):
        return TableReader([path], settings, split)
    compressed = name.endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst"))
    hint = (
        "unpack it once to a plain .tar: shards are read in place by offset"
        if compressed
        else "give a folder, a .csv, .tsv, .jsonl or .parquet table, or .tar shards"
    )
    raise DataError(f"{path}: not a source that capro can read", hint=hint)
