"""img2dataset / WebDataset tar shards, indexed once and read in place by offset; never extracted.

Members of one sample share the name up to the first dot: ``000000012.jpg``, ``.txt``, ``.json``,
``.cls``. A truncated shard keeps its whole members; the sample it ends in is quarantined.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Reader
from capro.data.readers.columns import choose, label_names, text_of
from capro.errors import DataError, did_you_mean

IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "img")
TEXTS = ("txt", "json", "cls", "caption", "text", "title")
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
        self.notes: dict[str, int] = {
            "shards": len(self._shards),
            "truncated_shards": 0,
            "replaced": 0,
            "other_members_ignored": 0,
        }
        self._settings = settings
        self._split = split
        self._seen_fields: set[str] = set()

    def count(self) -> int | None:
        """Unknown before the shards have been read."""
        return None

    def listing(self) -> list[Path]:
        """The shards."""
        return self._shards

    def rows(self) -> Iterator[Row]:
        """Every sample, shard by shard in name order."""
        empty = True
        for shard in self._shards:
            for row in self._shard(shard):
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
        if current is not None:  # its members are whole; whether more were to come, nobody knows
            yield self._row(shard, current, seen)

    def _take(self, sample: _Sample, extension: str, member: tarfile.TarInfo, raw: Any) -> None:
        if extension in IMAGES:
            sample.image = sample.image or (member.offset_data, member.size)  # the first of several
        elif extension in TEXTS and member.size <= MAX_META:
            raw.seek(member.offset_data)
            sample.texts[extension] = raw.read(member.size)
        else:
            self.notes["other_members_ignored"] += 1

    def _cut(self, shard: Path, key: str, detail: str) -> Row:
        """The sample that a shard ends in: not to be trusted, but told."""
        identity = f"{self._split}/{shard.stem}/{key}".rstrip("/")
        return Row(identity, shard.name, self._split, problem="truncated-shard", detail=detail[:500])

    def _row(self, shard: Path, sample: _Sample, seen: set[str]) -> Row:
        identity = f"{self._split}/{shard.stem}/{sample.key}"
        if sample.key in seen:
            return Row(
                f"{identity}#{len(seen)}", shard.name, self._split,
                problem="duplicate-id", detail=sample.key,
            )  # fmt: skip
        seen.add(sample.key)
        cells, problem = self._cells(sample)
        columns = choose(list(cells), DataSettings(), place=str(shard))
        named = {
            purpose: getattr(self._settings, f"{purpose}_column") or getattr(columns, purpose)
            for purpose in ("label", "text", "description", "tags", "id", "split")
        }
        self._seen_fields |= cells.keys()

        def cell(purpose: str) -> Any:
            return cells.get(named[purpose]) if named[purpose] else None

        labels, listed = label_names(cell("label"), self._settings.label_separator)
        offset, size = sample.image or (None, None)
        status = cells.get("status")
        if problem is None and status not in (None, "success"):
            problem = ("not-downloaded", text_of(status) + " " + text_of(cells.get("error_message")))
        if problem is None and sample.image is None:
            problem = ("no-image", "")
        reason, detail = problem or (None, "")
        return Row(
            text_of(cell("id")) or identity, shard.name, text_of(cell("split")) or self._split,
            offset=offset, size=size, labels=labels, listed=listed,
            title=text_of(cell("text")), description=text_of(cell("description")),
            tags=text_of(cell("tags")), problem=reason, detail=detail[:500],
        )  # fmt: skip

    def _cells(self, sample: _Sample) -> tuple[dict[str, Any], tuple[str, str] | None]:
        """The sample's fields: the json's, and each text member under its extension."""
        cells: dict[str, Any] = {}
        problem = None
        for extension, raw in sample.texts.items():
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = raw.decode("utf-8-sig", "replace")
                self.notes["replaced"] += 1
            if extension != "json":
                cells[extension] = text
                continue
            try:
                parsed = json.loads(text)
            except (ValueError, RecursionError) as error:
                problem = ("bad-row", f"{sample.key}.json: {error}")
                continue
            if isinstance(parsed, dict):
                cells = {**parsed, **cells}
            else:
                problem = ("bad-row", f"{sample.key}.json: not an object")
        return cells, problem

    def _check_columns(self) -> None:
        for purpose in ("label", "text", "description", "tags", "id", "split"):
            named = getattr(self._settings, f"{purpose}_column")
            if named is not None and named not in self._seen_fields:
                raise DataError(
                    f"{self.root}: no sample has a field '{named}' for --{purpose}-column",
                    hint=did_you_mean(named, self._seen_fields),
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
