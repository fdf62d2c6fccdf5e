"""What becomes public when a folder is published: its files, pictures, labels and texts, and what it changes.

A model folder (`capro export-model`) or a data set (`capro export --to hf`). Nothing here asks the network;
`capro.export.hub_repository` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from capro.data.readers.parquet_rows import class_labels, open_parquet
from capro.data.readers.table_files import whole_records
from capro.errors import ConfigError, DataError, first_line
from capro.export.model_config import own_file, parse_model_config, read_model_config
from capro.regular_files import read_regular
from capro.run.artefacts import (
    CARD,
    EXPORT_CHANGED,
    EXPORT_DROPPED,
    EXPORT_NOTE,
    FIELDS,
    MODEL_CONFIG,
    MODEL_ONNX,
    MODEL_VERDICTS,
    MODEL_WEIGHTS,
)
from capro.wording import byte_size, many, plain, some

SHARDS = "train-*.parquet"
# what an export leaves: of an earlier one in the same repository it goes, where this one lacks it
OURS = {
    "model": (CARD, MODEL_CONFIG, MODEL_WEIGHTS, MODEL_ONNX, MODEL_VERDICTS, "params.json"),
    "dataset": (CARD, EXPORT_NOTE, EXPORT_DROPPED, EXPORT_CHANGED, SHARDS),
}
SHOWN_FILES, SHOWN_LABELS = 12, 8


@dataclass(frozen=True)
class Contents:
    """What is in a folder that can be published.

    Attributes:
        kind: As the hub calls it.
        folder: The folder.
        files: Bytes by name, relative to the folder.
        labels: Names of the classes.
        pictures: How many are in it.
        texts: Samples with a text of the web, by column; those that were dropped are counted too.
        listed: Samples that are listed without their picture, since they were dropped or had changed.
    """

    kind: Literal["model", "dataset"]
    folder: Path
    files: dict[str, int]
    labels: list[str]
    pictures: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    listed: int = 0

    def lines(self) -> Iterator[str]:
        """Sentences about what becomes public."""
        names = [plain(name, clip=40) for name in self.labels]
        yield f"labels: {many(len(names), 'class', 'classes')}: {some(names, SHOWN_LABELS)}"
        if self.kind == "model":
            yield "pictures: none; texts: the class names, and the card with the settings of the run"
            if self.listed:
                yield f"{MODEL_VERDICTS}: ids, labels and evidence of {many(self.listed, 'training sample')}"
        else:
            yield f"pictures: {self.pictures:,}, unchanged, as in the source"
            texts = ", ".join(
                f"{name} of {many(count, 'sample')}" for name, count in self.texts.items() if count
            )
            yield f"texts of the web: {texts or 'none'}"
            if self.listed:
                yield f"listed without a picture, with ids and texts: {many(self.listed, 'sample')}"
        total = byte_size(sum(self.files.values()))
        yield f"files: {len(self.files):,}, {total}"
        largest = sorted(self.files, key=lambda name: (-self.files[name], name))
        foreign = [name for name in largest if not _is_ours(self.kind, name)]
        ours = [name for name in largest if name not in foreign]
        for name in [*foreign, *ours[:SHOWN_FILES]]:
            remark = ", not written by capro" if name in foreign else ""
            yield f"  {plain(name)}, {byte_size(self.files[name])}{remark}"
        if len(ours) > SHOWN_FILES:
            yield f"  and {len(ours) - SHOWN_FILES:,} smaller ones"


def _is_ours(kind: str, name: str) -> bool:
    """Whether an export leaves a file of this name."""
    return any(fnmatch(name, pattern) for pattern in OURS[kind])


def contents_of(folder: Path) -> Contents:
    """Look through a folder that is to be published; one that capro has not made is refused."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder", hint="give a folder made by capro export-model or export"
        )
    if (folder / MODEL_CONFIG).exists():
        for name in (CARD, MODEL_WEIGHTS):
            own_file(folder, name)
        config = parse_model_config(read_model_config(folder), str(folder))
        files = _files(folder)
        listed = 0
        if MODEL_VERDICTS in files:
            with open_parquet(folder / MODEL_VERDICTS) as table:
                listed = table.metadata.num_rows
        return Contents("model", folder, files, config.classes, listed=listed)
    if (folder / EXPORT_NOTE).exists():
        return _data_set(folder)
    raise ConfigError(
        f"{folder}: neither a model folder nor an exported data set",
        hint="make one with `capro export-model RUN --out DIR` or `capro export RUN --out DIR --to hf`",
    )


def _data_set(folder: Path) -> Contents:
    kind = _note(folder).get("format")
    if kind != "hf":
        raise ConfigError(
            f"{folder}: a data set in the format {str(kind)[:40]}, which the hub does not show",
            hint="export it with `capro export RUN --out DIR --to hf`",
        )
    files = _files(folder)
    shards = [folder / name for name in files if fnmatch(name, SHARDS)]
    if not shards or CARD not in files:
        missing = CARD if shards else SHARDS
        raise DataError(f"{folder}: {missing} is missing", hint="export the data set again")
    pictures, labels, texts = 0, list[str](), dict.fromkeys(FIELDS, 0)
    for shard in shards:
        with open_parquet(shard) as file:
            pictures += file.metadata.num_rows
            names = class_labels(file.schema_arrow)
            labels = names.get("label") or names.get("labels") or labels
            columns = [name for name in FIELDS if name in file.schema_arrow.names]
            for name in columns:
                cells = file.read(columns=[name])[name].to_pylist()
                texts[name] += sum(bool(cell) for cell in cells)
    listed = 0
    for name in (EXPORT_DROPPED, EXPORT_CHANGED):
        for row in whole_records(folder / name) if name in files else []:
            listed += 1
            for column in FIELDS:
                texts[column] += bool(row.cells.get(column))
    return Contents("dataset", folder, files, [*map(str, labels)], pictures, texts, listed)


def _note(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(folder / EXPORT_NOTE))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{folder / EXPORT_NOTE}: {first_line(error)}", hint="export the data set again"
        ) from None
    return found if isinstance(found, dict) else {}


def _files(folder: Path) -> dict[str, int]:
    """The files of a folder; links and hidden files are refused, since nobody expects them to be published."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            kind = "a link" if path.is_symlink() else "a hidden file"
            raise ConfigError(f"{path}: {kind}, which is not published", hint="move it out of the folder")
        if path.is_file():
            found[name] = path.stat().st_size
        elif not path.is_dir():
            raise ConfigError(f"{path}: not a file", hint="move it out of the folder")
    return found


@dataclass(frozen=True)
class Changes:
    """What publishing does to the files of a repository: names, each in one of the lists.

    Attributes:
        added: Not there yet.
        replaced: There with another content.
        removed: Left by an earlier export, and not in this one.
        same: There with this content.
        kept: There, and none of ours: they stay.
    """

    added: list[str]
    replaced: list[str]
    removed: list[str]
    same: list[str]
    kept: list[str]

    @property
    def nothing(self) -> bool:
        """Whether the repository is as it would become."""
        return not (self.added or self.replaced or self.removed)

    def lines(self) -> Iterator[str]:
        """Sentences about a repository that exists."""
        for verb, names in (
            ("added", self.added),
            ("REPLACED", self.replaced),
            ("REMOVED", self.removed),
            ("left as they are", [*self.same, *self.kept]),
        ):
            if names:
                yield f"  {verb}: {some([plain(name) for name in names], SHOWN_FILES)}"


def changes(contents: Contents, there: Sequence[str], same: Sequence[str] | set[str]) -> Changes:
    """Compare a folder with the files of a repository.

    Args:
        contents: Of the folder.
        there: Names of the repository's files.
        same: Those of them whose content is that of the folder's.
    """
    found = set(there)
    gone = sorted(found - contents.files.keys())
    removed = [name for name in gone if _is_ours(contents.kind, name)]
    return Changes(
        added=[name for name in contents.files if name not in found],
        replaced=[name for name in contents.files if name in found and name not in same],
        removed=removed,
        same=[name for name in contents.files if name in found and name in same],
        kept=[name for name in gone if name not in removed],
    )
