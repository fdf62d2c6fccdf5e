"""A CSV, TSV, JSONL or Parquet table with a column of paths or of image bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.data.manifest import Row, Source
from capro.data.readers.base import Reader
from capro.data.readers.columns import (
    Record,
    choose,
    header,
    is_inside,
    label_names,
    records,
    safe_relative,
    text_of,
)
from capro.errors import DataError

SHARD = re.compile(r"^(?P<split>train|val|validation|test)(-\d+-of-\d+)?\.parquet$")


def parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """Files called ``train-00000-of-00002.parquet`` by split: how Hugging Face stores data sets."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        match = SHARD.match(path.name)
        if match:
            split = match["split"].replace("validation", "val")
            found.setdefault(split, []).append(path)
    return dict(sorted(found.items(), key=lambda item: ("train", "val", "test").index(item[0])))


class TableReader(Reader):
    """Reads one table, in one or several files of the same columns."""

    def __init__(self, files: list[Path], settings: DataSettings, split: str) -> None:
        self._files = files
        self.notes: dict[str, int] = {"replaced": 0}
        self._settings = settings
        self._split = split
        self._columns = choose(header(files[0]), settings, place=str(files[0]))
        if self._columns.image is None:
            raise DataError(
                f"{files[0]}: no column with images among {', '.join(header(files[0])[:12])}",
                hint="name it with --image-column",
            )
        self._in_table = _holds_bytes(files[0], self._columns.image)
        root = Path(settings.image_root) if settings.image_root else files[0].parent
        if not root.is_dir():
            raise DataError(f"{root}: no such folder", hint="check data.image_root")
        self.root = root
        kind: Any = "parquet" if self._in_table else "files"
        place = files[0].parent if self._in_table else root
        self.source = Source(kind, str(place.resolve()), self._columns.image)

    def count(self) -> int | None:
        """Rows, where the files say so (Parquet)."""
        if any(file.suffix != ".parquet" for file in self._files):
            return None
        return sum(int(pq.ParquetFile(file).metadata.num_rows) for file in self._files)

    def listing(self) -> list[Path]:
        """The table's files."""
        return self._files

    def rows(self) -> Iterator[Row]:
        """Every row in file order."""
        seen: set[str] = set()
        for file in self._files:
            for record in records(file):
                self.notes["replaced"] += record.replaced
                yield self._row(file, record, seen)

    def _row(self, file: Path, record: Record, seen: set[str]) -> Row:
        columns = self._columns
        fallback = f"{self._split}/{file.stem}/{record.number - 1:08d}"
        if record.problem:
            return Row(fallback, "", self._split, problem="bad-row", detail=record.problem[:500])
        cells = record.cells
        values: dict[str, Any] = {
            "title": text_of(_cell(cells, columns.text)),
            "description": text_of(_cell(cells, columns.description)),
            "tags": text_of(_cell(cells, columns.tags)),
            "split": text_of(_cell(cells, columns.split)) or self._split,
        }
        values["labels"], values["listed"] = label_names(
            _cell(cells, columns.label), self._settings.label_separator
        )
        image = _cell(cells, columns.image)
        name = text_of(image.get("path")) if isinstance(image, Mapping) else ""
        if self._in_table:
            data = image.get("bytes") if isinstance(image, Mapping) else image
            values |= {"path": file.name, "row": record.number - 1, "data": data}
            if not data:
                values |= {"problem": "no-image"}
        else:
            name = text_of(image)
            values |= self._place(name)
        identity = text_of(_cell(cells, columns.id))
        if not identity:
            identity = f"{values['split']}/{name}" if name else fallback
            identity = fallback if identity in seen else identity
        seen.add(identity)
        return Row(id=identity, **values)

    def _place(self, name: str) -> dict[str, Any]:
        if not name:
            return {"path": "", "problem": "no-image"}
        relative = safe_relative(name)
        if relative is None or not is_inside(self.root, self.root / relative):
            return {"path": "", "problem": "outside-folder", "detail": name[:500]}
        if not (self.root / relative).is_file():
            return {"path": relative, "problem": "missing-file", "detail": name[:500]}
        return {"path": relative}


def _cell(cells: Mapping[str, Any], column: str | None) -> Any:
    return cells.get(column) if column else None


def _holds_bytes(file: Path, column: str) -> bool:
    """Whether a Parquet column holds image bytes (plain, or Hugging Face's {bytes, path})."""
    if file.suffix != ".parquet":
        return False
    kind = pq.ParquetFile(file).schema_arrow.field(column).type
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
