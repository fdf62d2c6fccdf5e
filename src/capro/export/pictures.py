"""The pictures of an export: their names, and their bytes as the scan saw them.

A picture is known by the SHA-256 that the scan noted, not by its path: one that was replaced since, also by a
link to another file, is not exported.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capro.data.manifest import Manifest
from capro.data.pixels import ImageStore
from capro.data.readers.base import SHARD_SIZE, OutputShard, Writer
from capro.data.readers.columns import is_inside
from capro.errors import CaproError, ConfigError, DataError
from capro.export.folders import safe_name, safe_names
from capro.pipeline.checksums import sha256_of
from capro.pipeline.engine import THIS_PROCESS, Engine, Portable
from capro.pipeline.files import writing
from capro.pipeline.shards import see_folder
from capro.stores import is_address

ENDINGS = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif"}  # MPO: a JPEG with further pictures in it

Progress = Callable[[int], None]
PART = 1000  # pictures of a task of a remote engine


class ChangedPicture(CaproError):
    """A picture is not what the scan saw."""


@dataclass(eq=False)
class ExportedPictures(Portable):
    """Names of the exported pictures, and a way to write or read each: what a ``Writer`` gets.

    Attributes:
        manifest: Where the pictures are, in the order of the table.
        table: The rows of the export.
        folder: Of the export.
        writer: Of the format.
        mode: What is done with the pictures.
        formulas: What is done with texts that a spreadsheet would compute.
        names: Relative to the export folder; without images, to ``root``. They follow from the table of the whole
            export, so a part of it is given them.
        progress: Called with the number of pictures done in each step, in this process.
        engine: Who reads and writes them.
    """

    manifest: Manifest
    table: pd.DataFrame
    folder: Path
    writer: Writer
    mode: str
    formulas: str
    names: list[str] = field(default_factory=list)
    progress: Progress = field(default=lambda _: None, compare=False)
    engine: Engine = field(default=THIS_PROCESS, compare=False)

    def __post_init__(self) -> None:
        self._store = ImageStore(self.manifest)
        # columns as arrays: a row of a DataFrame takes longer than the whole check of a picture
        self._sources, self._paths, self._sha256 = (
            self.table[name].to_numpy() for name in ("source", "path", "sha256")
        )
        self._is_inside = cache(is_inside)  # every folder of pictures is looked at once
        sources = enumerate(self.manifest.sources)
        self._files = {number: source.root for number, source in sources if source.kind == "files"}
        self.root: str | None = None
        if self.names:
            return
        if self.mode == "none":
            self.root, self.names = self._in_place()
        else:
            self.names = self._new_names()

    def _in_place(self) -> tuple[str, list[str]]:
        """The pictures where they are: a root and paths below it."""
        used = set(self.table["source"])
        if missing := sorted(used - self._files.keys()):
            source = self.manifest.sources[missing[0]]
            raise ConfigError(
                f"{source.root}: its images are in {source.kind}, not in files of their own",
                hint="use --images copy",
            )
        roots = sorted({self._files[number] for number in used})
        if is_address(roots[0]) or is_address(roots[-1]):
            if len(roots) > 1:
                raise ConfigError(f"pictures are in {roots[0]} and {roots[-1]}", hint="use --images copy")
            return roots[0], [*map(str, self.table["path"])]
        root = os.path.commonpath(roots)
        rows = zip(self.table["source"], self.table["path"], strict=True)
        return root, [os.path.relpath(Path(self._files[number], path), root) for number, path in rows]

    def _new_names(self) -> list[str]:
        folders: Iterable[str] = repeat(self.writer.below, len(self.table))
        if self.writer.by_class and "label" in self.table:
            folder_of = safe_names(sorted(set(self.table["label"])))
            folders = [f"{self.writer.below}/{folder_of[label]}" for label in self.table["label"]]
        names = []
        rows = zip(*(self.table[name] for name in ("path", "source", "format")), folders, strict=True)
        for number, (path, source, kind, below) in enumerate(rows):
            stem = safe_name(Path(str(path)).stem) if source in self._files else ""
            ending = ENDINGS.get(kind, f".{kind.lower()}")
            name = f"{number:08d}{'-' + stem if stem else ''}{ending}"
            names.append(f"{below}/{name}" if below else name)
        return names

    def path(self, number: int) -> Path | None:
        """The source file of a picture; None where it is no file of this machine."""
        root = self._files.get(int(self._sources[number]))
        return None if root is None or is_address(root) else Path(root, str(self._paths[number]))

    # --- as the scan saw them ---------------------------------------------------------------------

    def read(self, number: int) -> bytes:
        """The bytes of a picture."""
        self.progress(1)
        self._check_place(number)
        try:
            data = self._store.read(number)
        except DataError as error:
            raise ChangedPicture("the file that holds it cannot be read") from error
        if hashlib.sha256(data).hexdigest() != self._sha256[number]:
            raise ChangedPicture("its content has changed")
        return data

    def _check_place(self, number: int) -> None:
        """Refuse what is no file of its source any more: the rules are those of the scan."""
        path = self.path(number)
        if path is None:
            return
        root = Path(self._files[int(self._sources[number])])
        try:
            link = stat.S_ISLNK(os.lstat(path).st_mode)
            regular = stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            raise ChangedPicture(f"it is gone ({error.strerror})") from None
        if not regular:
            raise ChangedPicture("it is not a file")
        if not (is_inside(root, path) if link else self._is_inside(root, path.parent)):
            raise ChangedPicture("it is a link out of the data folder")

    # --- writing ----------------------------------------------------------------------------------

    def write_all(self, below: str = "") -> None:
        """Link or copy every picture into the export."""
        if self.mode != "none":
            self._by_parts(partial(_write_part, below))

    def in_shards(self, table: pd.DataFrame, write: Callable[[OutputShard], None]) -> None:
        """Write an export in shards of SHARD_SIZE rows, in any order; ``table`` has the rows of the pictures."""
        count = -(-len(table) // SHARD_SIZE)
        shards = (
            OutputShard(number, count, part.start, table[part], self.part(part))
            for number, part in enumerate(self._parts(SHARD_SIZE))
        )
        self._by_engine(partial(_write_shard, write), shards)

    def problems(self) -> list[str]:
        """Why each picture is not what the scan saw; empty where it is."""
        return [*chain.from_iterable(self._by_parts(_problems))]

    def part(self, rows: slice) -> ExportedPictures:
        """Some of the pictures, with what is known of them alone: small enough to be sent to a task."""
        numbers = np.arange(len(self.names))[rows]
        manifest = Manifest(self.manifest.table.take(numbers))  # a slice is sent with the whole of its table
        names = self.names[rows]
        return replace(self, manifest=manifest, table=self.table[rows], names=names, engine=THIS_PROCESS)

    def _parts(self, size: int) -> Iterator[slice]:
        return (slice(begin, begin + size) for begin in range(0, len(self.names), size))

    def _by_parts(self, work: Callable[[ExportedPictures], list[str]]) -> list[list[str]]:
        """What the work makes of each part; of the whole, where this process does it."""
        if not self.engine.remote:
            return [work(self)]
        return self._by_engine(work, map(self.part, self._parts(PART)))

    def _by_engine(self, work: Callable[[Any], list[str]], parts: Iterable[Any]) -> list[list[str]]:
        results = []
        for each in self.engine.map(work, parts):
            results.append(each)
            if self.engine.remote:
                self.progress(len(each))
        return results

    def write(self, number: int, below: str) -> None:
        """Link or copy one picture into the export."""
        target = self.folder / below / self.names[number]
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.mode == "link":
                self._link(number, target)
            else:
                target.write_bytes(self.read(number))

    def _link(self, number: int, target: Path) -> None:
        path = self.path(number)
        if path is None:
            raise ConfigError(
                "images inside tars, tables, hub datasets or object stores cannot be linked",
                hint="use --images copy",
            )
        self.progress(1)
        self._check_place(number)
        try:  # a symbolic link out of the folder would be refused by `scan`, a hard link is a file
            target.unlink(missing_ok=True)  # of a task that was lost and is done again
            os.link(path.resolve(), target, follow_symlinks=False)
        except OSError as error:
            raise DataError(f"{path}: cannot be linked: {error.strerror}", hint="use --images copy") from None
        # the link itself is looked at: whatever happens to the path now, this is what was exported
        if not stat.S_ISREG(target.lstat().st_mode) or sha256_of(str(target)) != self._sha256[number]:
            raise ChangedPicture("its content has changed")


def _write_part(below: str, pictures: ExportedPictures) -> list[str]:
    see_folder(pictures.folder)
    for number in range(len(pictures.names)):
        pictures.write(number, below)
    return pictures.names


def _write_shard(write: Callable[[OutputShard], None], shard: OutputShard) -> list[str]:
    see_folder(shard.pictures.folder)
    write(shard)
    return shard.pictures.names


def _problems(pictures: ExportedPictures) -> list[str]:
    problems = [""] * len(pictures.names)
    for number in range(len(problems)):
        try:
            pictures.read(number)
        except ChangedPicture as problem:
            problems[number] = str(problem)
    return problems
