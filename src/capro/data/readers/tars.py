"""img2dataset / WebDataset tar shards, indexed once and read in place by offset; never extracted.

Members of one sample share the name up to the first dot: ``000000012.jpg``, ``.txt``, ``.json``,
``.cls``. A truncated shard keeps its whole members; the sample it ends in is quarantined.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Format, Intake, Reader
from capro.data.readers.columns import (
    REPLACED,
    Missing,
    choose_columns,
    if_missing,
    json_object,
    named_columns,
    text_of,
)
from capro.data.readers.writing import SHARD_SIZE, Pictures, Writer, plain_records
from capro.errors import DataError, did_you_mean

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "img")
TEXT_ENDINGS = ("txt", "json", "cls", "caption", "text", "title")
STATUS_FIELDS = (  # what a crawler writes about the download, no text of the page
    "key", "status", "error_message", "url", "width", "height", "original_width", "original_height",
    "exif", "sha256", "md5",
)  # fmt: skip
MAX_META = 64 << 20  # a json of more than 64 MB describes no image


@dataclass
class _Sample:
    """The members of one sample: where the image is, and the raw texts."""

    key: str
    image: tuple[int, int] | None = None
    texts: dict[str, bytes] = field(default_factory=dict)


class TarReader(Reader):
    """Reads a shard, or all shards of a folder."""

    def __init__(self, path: Path, settings: DataSettings, split: str) -> None:
        self._shards = [path] if path.is_file() else sorted(path.glob("*.tar"))
        self.root = path.parent if path.is_file() else path
        self.source = Source("tars", str(self.root.resolve()))
        self.notes = dict.fromkeys(("shards", "truncated_shards", "replaced", "other_members_ignored"), 0)
        self.notes["shards"] = len(self._shards)
        self._settings, self._split = settings, split
        self._needed = if_missing(split) == "refuse"  # the fields that the settings name
        self._seen_fields: dict[str, None] = {}  # in order
        self._used: dict[str, str] = {}

    def intake(self) -> Intake:
        """Of the samples' fields."""
        used = {*self._used.values(), *STATUS_FIELDS}
        return Intake(columns=self._used, unused=[name for name in self._seen_fields if name not in used])

    def listing(self) -> list[Path]:
        """The shards."""
        return self._shards

    def rows(self) -> Iterator[Row]:
        """Every sample, shard by shard in name order."""
        empty = True
        for row in chain.from_iterable(map(self._shard, self._shards)):
            empty = False
            yield row
        if empty:
            raise DataError(
                f"{self._shards[0]}: no sample in the shards",
                hint="members are called KEY.jpg, KEY.txt, KEY.json",
            )
        self._check_columns()

    def _shard(self, shard: Path) -> Iterator[Row]:
        length = shard.stat().st_size
        current: _Sample | None = None
        seen: set[str] = set()
        with shard.open("rb") as raw:
            try:
                with tarfile.open(fileobj=raw, mode="r:") as tar:
                    for member in tar:
                        if not member.isfile():
                            self.notes["other_members_ignored"] += not member.isdir()
                            continue
                        key, extension = _split_name(member.name)
                        if current is not None and current.key != key:
                            yield self._row(shard, current, seen)
                            current = None
                        current = current or _Sample(key)
                        if member.offset_data + member.size > length:
                            self.notes["truncated_shards"] += 1
                            yield self._cut(shard, key, f"ends within {member.name}")
                            return
                        self._take(current, extension, member, raw)
                self.notes["truncated_shards"] += not _closed(raw, length)
            except (tarfile.TarError, OSError) as error:
                self.notes["truncated_shards"] += 1
                if current is None:
                    yield self._cut(shard, "", str(error))
        if current is not None:  # its members are whole; more of them may be lost
            yield self._row(shard, current, seen)

    def _take(self, sample: _Sample, extension: str, member: tarfile.TarInfo, raw: Any) -> None:
        if extension in IMAGE_ENDINGS:
            sample.image = sample.image or (member.offset_data, member.size)  # the first of several
        elif extension in TEXT_ENDINGS and member.size <= MAX_META:
            raw.seek(member.offset_data)
            sample.texts[extension] = raw.read(member.size)
        else:
            self.notes["other_members_ignored"] += 1

    def _cut(self, shard: Path, key: str, detail: str) -> Row:
        """The sample that a shard ends in, which cannot be used."""
        identity = f"{self._split}/{shard.stem}/{key}".rstrip("/")
        return Row(identity, shard.name, self._split, problem="truncated-shard", detail=detail)

    def _row(self, shard: Path, sample: _Sample, seen: set[str]) -> Row:
        identity = f"{self._split}/{shard.stem}/{sample.key}"
        if sample.key in seen:
            identity = f"{identity}#{len(seen)}"
            return Row(identity, shard.name, self._split, problem="duplicate-id", detail=sample.key)
        seen.add(sample.key)
        cells, known = self._cells(sample)
        self._seen_fields |= dict.fromkeys(cells)
        status = cells.get("status")
        if not known and status not in (None, "success"):
            detail = f"{text_of(status)} {text_of(cells.get('error_message'))}"
            known = {"problem": "not-downloaded", "detail": detail}
        if not known and sample.image is None:
            known = {"problem": "no-image"}
        offset, size = sample.image or (None, None)
        known |= {"path": shard.name, "offset": offset, "size": size}
        missing: Missing = "leave out" if self._needed else "guess"
        columns = choose_columns(list(cells), self._settings, place=str(shard), missing=missing)
        self._used = columns.used() | self._used
        return columns.row(cells, id=identity, split=self._split, **known)

    def _cells(self, sample: _Sample) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sample's fields (the json's, and each text member under its ending), and a problem."""
        cells: dict[str, Any] = {}
        problem: dict[str, Any] = {}
        for extension, raw in sample.texts.items():
            text = raw.decode("utf-8-sig", "replace")
            self.notes["replaced"] += REPLACED in text
            if extension != "json":
                cells[extension] = text
                continue
            parsed, wrong = json_object(text)
            cells = {**parsed, **cells}
            if wrong:
                problem = {"problem": "bad-row", "detail": f"{sample.key}.json: {wrong}"}
        return cells, problem

    def _check_columns(self) -> None:
        for purpose, column in named_columns(self._settings).items():
            if self._needed and purpose != "image" and column not in self._seen_fields:
                raise DataError(
                    f"{self.root}: no sample has a field '{column}' for --{purpose}-column",
                    hint=did_you_mean(column, self._seen_fields),
                )


def _split_name(name: str) -> tuple[str, str]:
    """Key and extension of a member, by WebDataset's rule: the name up to the first dot.

    >>> _split_name("a/0001.seg.png")
    ('a/0001', 'seg.png')
    """
    path = PurePosixPath(name)
    stem, _, extension = path.name.partition(".")
    parent = "" if str(path.parent) in (".", "/") else f"{path.parent}/"
    return parent + stem, extension.lower()


def _closed(raw: Any, length: int) -> bool:
    """Whether a tar ends as one should, with a block of zeros."""
    if length % 512 or length < 512:
        return False
    raw.seek(length - 512)
    return not any(raw.read(512))


def _write(out: Path, table: pd.DataFrame, pictures: Pictures, names: Sequence[str]) -> None:
    """train-000000.tar ...: KEY.png, KEY.json and, for one label, KEY.cls with the class number."""
    index = {name: number for number, name in enumerate(names)}
    records = plain_records(table.drop(columns="file_name"))
    for shard, begin in enumerate(range(0, len(records), SHARD_SIZE)):
        with tarfile.open(out / f"train-{shard:06d}.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for number, record in enumerate(records[begin : begin + SHARD_SIZE], start=begin):
                ending = PurePosixPath(pictures.names[number]).suffix
                _add(tar, f"{number:09d}{ending}", pictures.read(number))
                _add(tar, f"{number:09d}.json", json.dumps(record, ensure_ascii=False).encode())
                if "label" in record:
                    _add(tar, f"{number:09d}.cls", str(index[record["label"]]).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no time, no owner: the same export gives the same bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


FORMAT = Format(
    layout="give the folder with the .tar shards",
    recognises=lambda path, _: any(path.glob("*.tar")) if path.is_dir() else path.suffix.lower() == ".tar",
    readers=lambda path, settings, split: [TarReader(path, settings, split or "train")],
    writers={"webdataset": Writer(_write, images=("copy",))},
)
