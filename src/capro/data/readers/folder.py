"""An image folder: class = folder, with an optional ``metadata.csv|jsonl|parquet``.

Hugging Face's imagefolder convention: the metadata's ``file_name`` is relative to the metadata's
folder, and its columns win over the folder's name. Files are taken by content, not by extension.
An export has everything below ``train``: a class folder beside it could be taken for a split.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from capro.config import DataSettings
from capro.data.images import has_known_header
from capro.data.manifest import Row, Source
from capro.data.readers.base import Format, Pictures, Reader, Record, Writer, guarded, write_samples
from capro.data.readers.columns import Columns, if_missing, is_inside, named_columns, safe_relative, text_of
from capro.data.readers.table_files import TABLES, SourceTable
from capro.errors import DataError
from capro.files import open_regular

METADATA = ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet")
EXPORTED_SPLIT = "train"
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".jfif")


class FolderReader(Reader):
    """Reads an image folder."""

    def __init__(self, root: Path, settings: DataSettings, split: str) -> None:
        self.root, self._settings, self._split = root, settings, split
        self.source = Source("files", str(root.resolve()))
        self._closed_folders: list[OSError] = []  # that cannot be listed

    def count(self) -> int | None:
        """Files that look like pictures, plus metadata rows without a file (found on the way)."""
        return len(self._pictures)

    def rows(self) -> Iterator[Row]:
        """Every picture in path order, then metadata rows that match no picture."""
        metadata, bad, columns = self._metadata()
        known, pictures = len(metadata), self._pictures
        for name in pictures:
            bare = Row(f"{self._split}/{name}", name, self._split)
            yield guarded(bare, self._row, metadata.pop(_composed(name), None), columns)
        self.notes.counts["files"] = len(pictures)
        if columns is not None:
            matched = known - len(metadata)
            self.notes.counts.update(
                {
                    "metadata_rows": known + len(bad),
                    "metadata_matched": matched,
                    "metadata_unmatched": len(metadata) + len(bad),
                    "files_without_metadata": len(pictures) - matched,
                }
            )
        for name in metadata:
            yield Row(f"{self._split}/{name}", name, self._split, problem="missing-file", detail=name)
        yield from bad
        for error in self._closed_folders:
            name = Path(os.path.relpath(error.filename, self.root)).as_posix()
            detail = f"folder: {error.strerror}"
            yield Row(f"{self._split}/{name}/", name, self._split, problem="unreadable", detail=detail)

    @cached_property
    def _pictures(self) -> list[str]:
        files: list[str] = []
        for folder, folders, names in os.walk(self.root, onerror=self._closed_folders.append):
            folders[:] = [name for name in folders if not name.startswith(".")]
            visible = (name for name in names if not name.startswith(".") and name.lower() not in METADATA)
            files += [os.path.join(os.path.relpath(folder, self.root), name) for name in visible]
        pictures = sorted(Path(name).as_posix() for name in files if _looks_like_picture(self.root / name))
        self.notes.counts["other_files_ignored"] = len(files) - len(pictures)
        if not pictures:
            raise DataError(
                f"{self.root}: no image in this folder",
                hint="give a folder of images, a table, or tar shards",
            )
        return pictures

    def _metadata(self) -> tuple[dict[str, dict[str, Any]], list[Row], Columns | None]:
        """Cells by file name; rows that cannot be used; the columns' purposes."""
        here = sorted(path for path in self.root.iterdir() if path.is_file())
        tables_here = [path for path in here if path.name.lower() in METADATA]
        if not tables_here:
            tables = [path.name for path in here if path.suffix.lower() in TABLES]
            self.notes.ignored_tables = tables
            named = named_columns(self._settings) if if_missing(self._split) == "refuse" else {}
            for purpose, column in named.items():
                raise DataError(
                    f"{self.root}: --{purpose}-column {column} given, but there is no metadata file",
                    hint=f"rename {tables[0]} to metadata{Path(tables[0]).suffix.lower()}"
                    if tables
                    else "put a metadata.csv with a file_name column into the folder",
                )
            return {}, [], None
        if len(tables_here) > 1:
            both = " and ".join(file.name for file in tables_here)
            raise DataError(f"{self.root}: has two metadata files, {both}", hint="keep one of them")
        file = tables_here[0]
        table = SourceTable(file, self._settings, self._split, self.notes)
        image = table.columns.image
        if image is None:
            raise DataError(f"{file}: no 'file_name' column", hint="name it with --image-column")
        cells: dict[str, dict[str, Any]] = {}
        bad: list[Row] = []
        for record in table.records(file, "metadata_replaced"):
            bare = Row(f"{self._split}/metadata:{record.number}", "", self._split)
            row = guarded(bare, self._named, record, image, cells)
            if row.problem:
                bad.append(row)
            else:
                cells[row.path] = dict(record.cells)
        return cells, bad, table.columns

    def _named(self, bare: Row, record: Record, image: str, seen: dict[str, Any]) -> Row:
        """A metadata row with the normalised name of its file as path, or with its problem."""
        if record.problem:
            return replace(bare, problem=record.reason, detail=record.problem)
        raw = text_of(record.cells.get(image))
        name = safe_relative(raw)
        if name is None or not is_inside(self.root, self.root / name):
            return replace(bare, problem="outside-folder", detail=raw)
        name = _composed(name)
        if name in seen:
            return replace(bare, path=name, problem="duplicate-id", detail=name)
        return replace(bare, path=name)

    def _row(self, bare: Row, cells: dict[str, Any] | None, columns: Columns | None) -> Row:
        known: dict[str, Any] = {}
        if cells is None or columns is None or not columns.label:  # the class is the folder
            folder = Path(bare.path).parent.name
            known = {"labels": (folder,) if folder else (), "multi_label": False}
        if not is_inside(self.root, self.root / bare.path):
            known |= {"problem": "outside-folder", "detail": "a symbolic link out of the folder"}
        return (columns or Columns()).row(bare, cells or {}, **known)


def _composed(name: str) -> str:
    """A name in the one form of accents by which files and rows are matched: macOS writes another."""
    return unicodedata.normalize("NFC", name)


def _looks_like_picture(path: Path) -> bool:
    """By ending, or by the first bytes: a picture called ``x.dat`` counts, a README does not."""
    if path.suffix.lower() in PICTURES:
        return True
    try:
        with open_regular(path, buffering=0) as file:
            head = file.read(16)
    except OSError:
        return False
    return has_known_header(head)


def _write(out: Path, table: pd.DataFrame, pictures: Pictures, classes: Sequence[str]) -> None:
    (out / EXPORTED_SPLIT).mkdir()
    names = [name.removeprefix(f"{EXPORTED_SPLIT}/") for name in table["file_name"]]
    table = table.assign(file_name=names)
    write_samples(f"{EXPORTED_SPLIT}/metadata.csv", out, table, pictures, classes)


FORMAT = Format(
    layout="give a folder of images",
    recognises=lambda path, _: path.is_dir(),
    readers=lambda path, settings, split: [FolderReader(path, settings, split or "train")],
    # train/LABEL/NUMBER-NAME.png and train/metadata.csv: an image folder as torchvision and Hugging Face read
    writers={"folder": Writer(_write, images=("link", "copy"), below=EXPORTED_SPLIT, by_class=True)},
)
