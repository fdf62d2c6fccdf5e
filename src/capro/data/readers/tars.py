"""img2dataset / WebDataset tar shards, indexed once and read in place by offset; never extracted.

Members of one sample share the name up to the first dot: ``000000012.jpg``, ``.txt``, ``.json``,
``.cls``. A truncated or damaged shard keeps its whole samples; those that it has only parts of are quarantined.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import pandas as pd

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import (
    Format,
    OutputShard,
    Pictures,
    Reader,
    Writer,
    guarded,
    plain_records,
    written_texts,
)
from capro.data.readers.columns import (
    REPLACED,
    Columns,
    Missing,
    add_fields,
    choose_columns,
    if_missing,
    json_object,
    named_columns,
    text_of,
    valid_text,
)
from capro.data.readers.tar_members import REQUEST, Gap, Member, members, open_shard, read_at
from capro.errors import DataError, did_you_mean
from capro.pipeline.artefacts import atomic_path
from capro.stores import AnyPath, ObjectPath

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "img")
TEXT_ENDINGS = ("txt", "json", "cls", "caption", "text", "title")
STATUS_FIELDS = (  # what a crawler writes about the download, no text of the page
    "key", "status", "error_message", "url", "width", "height", "original_width", "original_height",
    "exif", "sha256", "md5",
)  # fmt: skip
NOTES = ("shards", "truncated_shards", "damaged_places", "replaced", "other_members_ignored")
MAX_CHOSEN = 1000  # combinations of fields whose columns are remembered
MAX_META = 64 << 20  # bytes: a larger text describes no image


@dataclass
class _Sample:
    """The members of one sample: where the image is, and the raw texts."""

    key: str
    image: Member | None = None
    data: bytes | None = None  # of the image, where the shard comes from an object store
    texts: dict[str, bytes] = field(default_factory=dict)  # by ending
    problem: str = ""

    @property
    def endings(self) -> set[str]:
        """Its parts; all images count as one."""
        return {*self.texts, *(["image"] if self.image else [])}


class TarReader(Reader):
    """Reads a shard, or all shards of a folder."""

    def __init__(self, path: AnyPath, settings: DataSettings, split: str) -> None:
        self._shards: list[AnyPath] = [path] if path.is_file() else sorted(path.glob("*.tar"))
        self.root = path.parent if path.is_file() else path
        self.source = Source("tars", str(self.root.resolve()))
        self.notes.counts.update(dict.fromkeys(NOTES, 0), shards=len(self._shards))
        self._settings, self.split = settings, split
        self._needed = if_missing(split) == "refuse"  # the fields that the settings name
        self._seen_fields: dict[str, None] = {}
        self.usual: set[str] | None = None  # endings that every whole sample has; None before the first
        self._columns = lru_cache(MAX_CHOSEN)(self._choose)  # most samples have the same fields

    def listing(self) -> list[AnyPath]:
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
        used = {*self.notes.columns.values(), *STATUS_FIELDS}
        self.notes.unused = [valid_text(name) for name in self._seen_fields if name not in used]

    def _shard(self, shard: AnyPath) -> Iterator[Row]:
        try:
            file = open_shard(shard)
        except OSError as error:
            detail = error.strerror or str(error)
            yield Row(
                f"{self.split}/{shard.stem}", shard.name, self.split, problem="broken-file", detail=detail
            )
            return
        with file:
            yield from _ShardRows(self, shard, file).rows()

    def row(self, bare: Row, sample: _Sample) -> Row:
        """The row of a sample whose members are all there."""
        cells = written_texts(self._cells(sample))
        add_fields(self._seen_fields, cells)
        row = self._columns(tuple(cells)).row(bare, cells)
        if sample.image is not None:
            row.offset, row.size, row.data = sample.image.offset, sample.image.size, sample.data
        status = cells.get("status")
        if sample.problem:
            row.problem, row.detail = "bad-row", sample.problem
        elif status not in (None, "success"):
            row.problem = "not-downloaded"
            row.detail = f"{text_of(status)} {text_of(cells.get('error_message'))}"
        elif sample.image is None:
            row.problem = "no-image"
        return row

    def _choose(self, names: tuple[str, ...]) -> Columns:
        """The columns of a sample with these fields."""
        missing: Missing = "leave out" if self._needed else "guess"
        columns = choose_columns(names, self._settings, where=str(self.root), missing=missing)
        self.notes.columns = columns.used() | self.notes.columns
        return columns

    def _cells(self, sample: _Sample) -> dict[str, Any]:
        """The sample's fields: those of the json, and each text member under its ending."""
        cells: dict[str, Any] = {}
        for extension, raw in sample.texts.items():
            text = raw.decode("utf-8-sig", "replace")
            self.notes.counts["replaced"] += REPLACED in text
            if extension != "json":
                cells[extension] = text
                continue
            parsed, wrong = json_object(text)
            cells = {**parsed, **cells}
            if wrong:
                sample.problem = f"{sample.key}.json: {wrong}"
        return cells

    def _check_columns(self) -> None:
        for purpose, column in named_columns(self._settings).items():
            if self._needed and purpose != "image" and column not in self._seen_fields:
                raise DataError(
                    f"{self.root}: no sample has a field '{column}' for --{purpose}-column",
                    hint=did_you_mean(column, map(valid_text, self._seen_fields)),
                )


@dataclass
class _ShardRows:
    """The rows of one shard. A sample is whole if it has what all others have, wherever the shard is damaged."""

    reader: TarReader
    shard: AnyPath
    file: BinaryIO
    seen: set[str] = field(default_factory=set)  # keys of whole samples
    lost: set[str] = field(default_factory=set)  # keys of samples that the shard has parts of
    gap: Gap | None = None  # damage that no row accounts for yet

    def rows(self) -> Iterator[Row]:
        """Every sample, and every gap in which samples are lost."""
        current: _Sample | None = None
        for member in members(self.file):
            if isinstance(member, Gap):
                yield from self._before(member, current)
                current = None
                continue
            if member.kind in ("folder", "other"):
                self.reader.notes.counts["other_members_ignored"] += member.kind == "other"
                continue
            key, extension = _split_name(member.name)
            if current is not None and current.key != key:
                yield from self._finished(current)
                current = None
            current = current or _Sample(key)
            self._take(current, extension, member)
        if current is not None:
            yield from self._finished(current)
        yield from self._unexplained()

    def _take(self, sample: _Sample, extension: str, member: Member) -> None:
        if member.kind == "sparse":
            sample.problem = f"{member.name}: a sparse file, which is not stored in one piece"
        elif extension in IMAGE_ENDINGS:
            if sample.image is None:  # the first of several
                sample.image = member
                # bytes of an object are at hand now; a larger picture is a request of its own
                if isinstance(self.shard, ObjectPath) and member.size <= REQUEST:
                    sample.data = read_at(self.file, member.offset, member.size)
        elif extension not in TEXT_ENDINGS:
            self.reader.notes.counts["other_members_ignored"] += 1
        elif member.size > MAX_META:
            sample.problem = f"{member.name}: {member.size} bytes of text"
        else:
            sample.texts[extension] = read_at(self.file, member.offset, member.size)

    def _finished(self, sample: _Sample) -> Iterator[Row]:
        """A sample behind which another begins, or the shard ends as it should."""
        if sample.key in self.lost:
            return  # the rest of one that has its row
        usual = self.reader.usual
        if self.gap is not None and usual is not None and not usual <= sample.endings:
            yield self._lost(sample.key, self.gap)  # its first members were in the gap
            self.gap = None
            return
        yield from self._unexplained()
        self.reader.usual = sample.endings if usual is None else usual & sample.endings
        bare = self._bare(sample.key)
        if sample.key in self.seen:
            yield replace(bare, id=f"{bare.id}#{len(self.seen)}", problem="duplicate-id", detail=sample.key)
            return
        self.seen.add(sample.key)
        yield guarded(bare, self.reader.row, sample)

    def _before(self, gap: Gap, sample: _Sample | None) -> Iterator[Row]:
        """What the shard has up to a gap; the sample before it may have lost members in it."""
        self.reader.notes.counts["truncated_shards" if gap.final else "damaged_places"] += 1
        usual = self.reader.usual
        key = _split_name(gap.name)[0] if gap.name else None
        if sample is not None and sample.key not in self.lost:
            if key == sample.key or usual is None or not usual <= sample.endings:
                yield self._lost(sample.key, gap)
                return
            yield from self._finished(sample)
        yield from self._unexplained()
        self.gap = None if gap.empty else gap

    def _unexplained(self) -> Iterator[Row]:
        """The gap as a row of its own."""
        if self.gap is not None:
            named = _split_name(self.gap.name)[0] if self.gap.name else f"@{self.gap.offset}"
            yield self._lost(named, self.gap)
            self.gap = None

    def _lost(self, key: str, gap: Gap) -> Row:
        self.lost.add(key)
        reason = "truncated-shard" if gap.final else "damaged-shard"
        return replace(self._bare(key), problem=reason, detail=gap.detail)

    def _bare(self, key: str) -> Row:
        split, shard = self.reader.split, self.shard
        return Row(f"{split}/{shard.stem}/{key}", shard.name, split)


def _split_name(name: str) -> tuple[str, str]:
    """Key and extension of a member, by WebDataset's rule: the name up to the first dot.

    >>> _split_name("a/0001.seg.png")
    ('a/0001', 'seg.png')
    """
    if "./" in name or "//" in name or name.endswith(("/", "/.")):  # written in a way that needs a look
        name = str(PurePosixPath(name))
    parent, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return (parent + slash if parent else "") + stem, extension.lower()


def _write(out: Path, table: pd.DataFrame, pictures: Pictures, names: Sequence[str]) -> None:
    """train-000000.tar ...: KEY.png, KEY.json and, for one label, KEY.cls with the class number."""
    index = {name: number for number, name in enumerate(names)}
    pictures.in_shards(table.drop(columns="file_name"), partial(_write_shard, out, index))


def _write_shard(out: Path, index: Mapping[str, int], shard: OutputShard) -> None:
    pictures, name = shard.pictures, f"train-{shard.number:06d}.tar"
    with (
        atomic_path(out / name, cache=True) as temporary,
        tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for number, record in enumerate(plain_records(shard.table)):
            key, ending = f"{shard.begin + number:09d}", PurePosixPath(pictures.names[number]).suffix
            _add(tar, f"{key}{ending}", pictures.read(number))
            _add(tar, f"{key}.json", json.dumps(record, ensure_ascii=False).encode())
            if "label" in record:
                _add(tar, f"{key}.cls", str(index[record["label"]]).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no time, no owner: the same export gives the same bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


FORMAT = Format(
    layout="give the folder with the .tar shards",
    recognises=lambda path, _: any(path.glob("*.tar")) if path.is_dir() else path.suffix.lower() == ".tar",
    readers=lambda path, settings, split: [TarReader(path, settings, split or "train")],
    in_stores=True,
    writers={"webdataset": Writer(_write, images=("copy",))},
)
