"""A CSV, TSV, JSONL or Parquet table with a column of paths or of image bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.data.manifest import SPLITS, Row, Source, blocks
from capro.data.readers.base import (
    Format,
    OutputShard,
    Pictures,
    Reader,
    Record,
    Writer,
    guarded,
    plain_records,
    write_samples,
)
from capro.data.readers.columns import cell_bytes, file_below, image_column, text_of
from capro.data.readers.table_files import TABLES, SourceTable, holds_bytes, open_parquet
from capro.errors import DataError
from capro.pipeline.artefacts import atomic_path, table_metadata
from capro.stores import AnyPath, any_path

ROWS_AT_ONCE = 256  # with their images in memory
_SHARD = re.compile(r"^(?P<split>train|val|validation|test)(-\d+-of-\d+)?\.parquet$")


def parquet_splits(folder: AnyPath) -> dict[str, list[AnyPath]]:
    """Files called ``train-00000-of-00002.parquet`` by split: how Hugging Face stores datasets."""
    splits: dict[str, list[AnyPath]] = {split: [] for split in SPLITS}
    files: list[Any] = [*folder.glob("*.parquet")]  # all of one kind: they can be sorted
    for path in sorted(files):
        if match := _SHARD.match(path.name):
            splits[match["split"].replace("validation", "val")].append(path)
    return {split: files for split, files in splits.items() if files}


class TableReader(Reader):
    """Reads one table, in one or several files of the same columns."""

    def __init__(self, files: list[AnyPath], settings: DataSettings, split: str) -> None:
        self._files, self._split = files, split
        self.root = any_path(settings.image_root) if settings.image_root else files[0].parent
        if not self.root.is_dir():
            raise DataError(f"{self.root}: no such folder", hint="check data.image_root")
        self._table = SourceTable(files[0], settings, split, self.notes)
        self._image = image_column(self._table.columns, self._table.names, where=str(files[0]))
        self._in_table = files[0].suffix.lower() == ".parquet" and holds_bytes(files[0], self._image)
        self.source = Source("files", str(self.root.resolve()))
        if self._in_table:
            self.source = Source("parquet", str(files[0].parent.resolve()), self._image)

    def count(self) -> int | None:
        """Rows, where that is in the files (Parquet)."""
        if any(file.suffix.lower() != ".parquet" for file in self._files):
            return None
        try:
            return sum(_rows_in(file) for file in self._files)
        except DataError:  # a file that cannot be read: known when its turn comes
            return None

    def listing(self) -> list[AnyPath]:
        """The table's files."""
        return self._files

    def rows(self) -> Iterator[Row]:
        """Every row in file order; a further file that cannot be read is a row with that problem."""
        seen: set[str] = set()
        for number, file in enumerate(self._files):
            try:
                for record in self._table.records(file):
                    bare = Row(f"{self._split}/{file.stem}/{record.number - 1:08d}", file.name, self._split)
                    yield guarded(bare, self._row, record, seen)
            except DataError as error:
                if number == 0:
                    raise
                identity = f"{self._split}/{file.stem}"
                yield Row(identity, file.name, self._split, problem="broken-file", detail=str(error))

    def _row(self, bare: Row, record: Record, seen: set[str]) -> Row:
        if record.problem:
            return replace(bare, path="", problem=record.reason, detail=record.problem)
        image = record.cells.get(self._image)
        where: dict[str, Any]
        if self._in_table:
            name = text_of(image.get("path")) if isinstance(image, Mapping) else ""
            data = cell_bytes(image)
            where = {"row": record.number - 1, "data": data}
            where |= {} if data else {"problem": "no-image", "detail": name}
        else:
            name = text_of(image)
            where = file_below(self.root, name) if name else {"path": "", "problem": "no-image"}
        row = self._table.columns.row(replace(bare, id=""), record.cells, **where)
        if not row.id:
            identity = f"{row.split}/{name}" if name else bare.id
            row.id = bare.id if identity in seen else identity
        seen.add(row.id)
        return row


def _rows_in(file: AnyPath) -> int:
    with open_parquet(file) as opened:
        return int(opened.metadata.num_rows)


def _readers(path: AnyPath, settings: DataSettings, split: str | None) -> list[TableReader]:
    if path.is_file():
        return [TableReader([path], settings, split or "train")]
    shards = parquet_splits(path)
    if split:
        shards = {split: [file for files in shards.values() for file in files]}
    return [TableReader(files, settings, name) for name, files in shards.items()]


# --- writing --------------------------------------------------------------------------------------


def _write_parquet(out: Path, table: pd.DataFrame, pictures: Pictures, _: Sequence[str]) -> None:
    """samples.parquet, and images/ where they were asked for."""
    rows = pa.Table.from_pandas(table, preserve_index=False)
    rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), **table_metadata()})
    pq.write_table(rows, out / "samples.parquet")
    pictures.write_all()


def _write_hub(out: Path, table: pd.DataFrame, pictures: Pictures, names: Sequence[str]) -> None:
    """train-00000-of-00002.parquet ... with image bytes and ClassLabel."""
    index = {name: number for number, name in enumerate(names)}
    pictures.in_shards(table, partial(_write_hub_shard, out, index, _hub_schema(table, names)))


def _write_hub_shard(out: Path, index: Mapping[str, int], schema: pa.Schema, shard: OutputShard) -> None:
    def with_image(number: int, row: dict[str, Any]) -> dict[str, Any]:
        image = {"bytes": shard.pictures.read(number), "path": row.pop("file_name")}
        if "label" in row:
            return {"image": image, **row, "label": index[row["label"]]}
        return {"image": image, **row, "labels": [index[name] for name in row["labels"]]}

    rows = enumerate(plain_records(shard.table))
    name = f"train-{shard.number:05d}-of-{shard.count:05d}.parquet"
    with atomic_path(out / name, cache=True) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for block in blocks((with_image(number, row) for number, row in rows), ROWS_AT_ONCE):
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def _hub_schema(table: pd.DataFrame, names: Sequence[str]) -> pa.Schema:
    """Arrow columns, and the features that the datasets library reads from their metadata."""
    label = {"names": list(names), "_type": "ClassLabel"}
    text = {"dtype": "string", "_type": "Value"}
    kinds: dict[str, tuple[pa.DataType, Any]] = {
        "image": (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), {"_type": "Image"}),
        "label": (pa.int64(), label),
        "labels": (pa.list_(pa.int64()), {"feature": label, "_type": "Sequence"}),
        "given_labels": (pa.list_(pa.string()), {"feature": text, "_type": "Sequence"}),
        "label_score": (pa.float64(), {"dtype": "float64", "_type": "Value"}),
    }
    columns = ["image", *(column for column in table.columns if column != "file_name")]
    typed = {column: kinds.get(column, (pa.string(), text)) for column in columns}
    features = {column: feature for column, (_, feature) in typed.items()}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode(), **table_metadata()}
    return pa.schema([(column, kind) for column, (kind, _) in typed.items()], metadata=metadata)


FORMAT = Format(
    layout="give the table itself, or a folder of files called SPLIT-00000-of-00001.parquet",
    recognises=lambda path, _: (
        bool(parquet_splits(path)) if path.is_dir() else path.name.lower().endswith(TABLES)
    ),
    readers=_readers,
    in_stores=True,
    writers={
        "csv": Writer(partial(write_samples, "samples.csv"), below="images", entry="samples.csv"),
        "parquet": Writer(_write_parquet, below="images", entry="samples.parquet"),
        "hf": Writer(_write_hub, images=("copy",), card=True),
    },
)
