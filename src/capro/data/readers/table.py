"""A CSV, TSV, JSONL or Parquet table with a column of paths or of image bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.data.image_bytes import cell_bytes
from capro.data.manifest import SPLITS, Row, Source, blocks
from capro.data.readers.base import Format, Intake, Reader
from capro.data.readers.columns import choose_columns, file_below, if_missing, image_column, text_of
from capro.data.readers.table_files import TABLES, Record, file_intake, header, records
from capro.data.readers.writing import SHARD_SIZE, Pictures, Writer, plain_records, write_csv
from capro.errors import DataError

ROWS_AT_ONCE = 256  # with their images in memory
_SHARD = re.compile(r"^(?P<split>train|val|validation|test)(-\d+-of-\d+)?\.parquet$")


def parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """Files called ``train-00000-of-00002.parquet`` by split: how Hugging Face stores data sets."""
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(folder.glob("*.parquet")):
        if match := _SHARD.match(path.name):
            found[match["split"].replace("validation", "val")].append(path)
    return {split: files for split, files in found.items() if files}


class TableReader(Reader):
    """Reads one table, in one or several files of the same columns."""

    def __init__(self, files: list[Path], settings: DataSettings, split: str) -> None:
        self._files, self._split, self._encoding = files, split, settings.encoding
        self.notes = {"replaced": 0}
        names, place = header(files[0], self._encoding), str(files[0])
        self._columns = choose_columns(names, settings, place=place, missing=if_missing(split))
        self._intake = file_intake(files, names, self._columns, self._encoding)
        column = image_column(self._columns, names, place=place)
        self._in_table = _holds_bytes(files[0], column)
        self.root = Path(settings.image_root) if settings.image_root else files[0].parent
        if not self.root.is_dir():
            raise DataError(f"{self.root}: no such folder", hint="check data.image_root")
        if self._in_table:
            self.source = Source("parquet", str(files[0].parent.resolve()), column)
        else:
            self.source = Source("files", str(self.root.resolve()), column)

    def count(self) -> int | None:
        """Rows, where that is in the files (Parquet)."""
        if any(file.suffix.lower() != ".parquet" for file in self._files):
            return None
        return sum(int(pq.ParquetFile(file).metadata.num_rows) for file in self._files)

    def intake(self) -> Intake:
        """Of the table's files."""
        return self._intake

    def listing(self) -> list[Path]:
        """The table's files."""
        return self._files

    def rows(self) -> Iterator[Row]:
        """Every row in file order."""
        seen: set[str] = set()
        for file in self._files:
            for record in records(file, self._encoding):
                self.notes["replaced"] += record.replaced
                yield self._row(file, record, seen)

    def _row(self, file: Path, record: Record, seen: set[str]) -> Row:
        fallback = f"{self._split}/{file.stem}/{record.number - 1:08d}"
        if record.problem:
            return Row(fallback, "", self._split, problem="bad-row", detail=record.problem)
        image = record.cells.get(self.source.image_column or "")
        place: dict[str, Any]
        if self._in_table:
            name = text_of(image.get("path")) if isinstance(image, Mapping) else ""
            data = cell_bytes(image)
            place = {"path": file.name, "row": record.number - 1, "data": data}
            place |= {} if data else {"problem": "no-image"}
        else:
            name = text_of(image)
            place = file_below(self.root, name) if name else {"path": "", "problem": "no-image"}
        row = self._columns.row(record.cells, id="", split=self._split, **place)
        if not row.id:
            identity = f"{row.split}/{name}" if name else fallback
            row = replace(row, id=fallback if identity in seen else identity)
        seen.add(row.id)
        return row


def _holds_bytes(file: Path, column: str) -> bool:
    """Whether a Parquet column holds image bytes (plain, or Hugging Face's {bytes, path})."""
    if file.suffix.lower() != ".parquet":
        return False
    kind = pq.ParquetFile(file).schema_arrow.field(column).type
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _readers(path: Path, settings: DataSettings, split: str | None) -> list[TableReader]:
    if path.is_file():
        return [TableReader([path], settings, split or "train")]
    shards = parquet_splits(path)
    if split:
        shards = {split: [file for files in shards.values() for file in files]}
    return [TableReader(files, settings, name) for name, files in shards.items()]


# --- writing --------------------------------------------------------------------------------------


def _write_csv(out: Path, table: pd.DataFrame, pictures: Pictures, _: Sequence[str]) -> None:
    """samples.csv, and images/ where they were asked for."""
    write_csv(out / "samples.csv", table)
    pictures.write_all()


def _write_parquet(out: Path, table: pd.DataFrame, pictures: Pictures, _: Sequence[str]) -> None:
    """samples.parquet, and images/ where they were asked for."""
    table.to_parquet(out / "samples.parquet", index=False)
    pictures.write_all()


_CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: train-*.parquet
task_categories:
- image-classification
tags:
- capro
---
# Cleaned data set

Made by `capro export`: `label` is the corrected label, `given_label` the one it came with; `decision` and \
`evidence` give the reasons. Samples that were dropped are in `dropped.csv`.
"""


def _write_hub(out: Path, table: pd.DataFrame, pictures: Pictures, names: Sequence[str]) -> None:
    """train-00000-of-00002.parquet ... with image bytes and ClassLabel, and a README.md card."""
    schema = _hub_schema(table, names)
    index = {name: number for number, name in enumerate(names)}

    def with_image(number: int, row: dict[str, Any]) -> dict[str, Any]:
        image = {"bytes": pictures.read(number), "path": row.pop("file_name")}
        if "label" in row:
            return {"image": image, **row, "label": index[row["label"]]}
        return {"image": image, **row, "labels": [index[name] for name in row["labels"]]}

    rows = plain_records(table)
    shards = -(-len(rows) // SHARD_SIZE)
    for shard in range(shards):
        first = shard * SHARD_SIZE
        part = enumerate(rows[first : first + SHARD_SIZE], start=first)
        with pq.ParquetWriter(out / f"train-{shard:05d}-of-{shards:05d}.parquet", schema) as writer:
            for block in blocks((with_image(number, row) for number, row in part), ROWS_AT_ONCE):
                writer.write_table(pa.Table.from_pylist(block, schema=schema))
    (out / "README.md").write_text(_CARD, "utf-8")


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
    found = {column: kinds.get(column, (pa.string(), text)) for column in columns}
    features = {column: feature for column, (_, feature) in found.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(column, kind) for column, (kind, _) in found.items()], metadata=metadata)


FORMAT = Format(
    layout="give the table itself, or a folder of files called SPLIT-00000-of-00001.parquet",
    recognises=lambda path, _: (
        bool(parquet_splits(path)) if path.is_dir() else path.name.lower().endswith(TABLES)
    ),
    readers=_readers,
    writers={
        "csv": Writer(_write_csv, below="images", entry="samples.csv"),
        "parquet": Writer(_write_parquet, below="images", entry="samples.parquet"),
        "hf": Writer(_write_hub, images=("copy",)),
    },
)
