"""Data that is in memory, written down as a source that the readers know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.data.manifest import Row, blocks
from capro.data.readers.columns import choose_columns, text_of
from capro.data.readers.hub import HubReader, undecoded
from capro.data.readers.table import ROWS_AT_ONCE
from capro.errors import DataError
from capro.pipeline.artefacts import atomic_path
from capro.pipeline.checksums import fingerprint


def write_frame_source(
    frame: pd.DataFrame, path: Path, *, image_column: str | None = None, label_column: str | None = None
) -> dict[str, Any]:
    """Write a DataFrame with a column of paths; returns settings of ``data`` that read it.

    Paths are made relative to the folder that they have in common: no reader follows absolute ones.
    """
    frame = frame.reset_index(drop=True)
    frame.columns = frame.columns.map(str)
    settings = DataSettings(image_column=image_column, label_column=label_column)
    columns = choose_columns(list(frame.columns), settings, where="DataFrame")
    if columns.image is None:
        raise DataError(
            f"DataFrame: no column with paths among {', '.join(frame.columns[:12])}",
            hint="call it 'image' or 'path', or name it with data__image_column",
        )
    if columns.label is None:
        raise DataError("DataFrame: no column with labels", hint="call it 'label', or give y")
    paths = [os.path.abspath(value) if _is_path(value) else "" for value in frame[columns.image]]
    folders = {os.path.dirname(value) for value in paths if value}
    if not folders:
        raise DataError("DataFrame: no row has a path", hint="give paths of image files")
    root = os.path.commonpath(folders)
    frame[columns.image] = [os.path.relpath(value, root) if value else None for value in paths]
    frame[columns.label] = [_label(value) for value in frame[columns.label]]
    key = fingerprint([list(frame.columns), frame.astype(str).to_numpy().tolist()])
    _write_once(path, key, lambda target: frame.to_parquet(target, index=False))
    named = {"image_column": columns.image, "label_column": columns.label}
    return {"source": str(path), "image_root": root, **named}


def with_labels(frame: pd.DataFrame, y: Sequence[Any]) -> pd.DataFrame:
    """The frame with a column ``label``."""
    if len(y) != len(frame):
        raise DataError(f"{len(frame)} rows, but {len(y)} labels in y", hint="give one label for each row")
    return frame.assign(label=list(y))


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and str(value) != ""


def _label(value: Any) -> Any:
    """A label cell: a name, or a list of names."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [text_of(one) for one in value]
    return text_of(value) or None


def _write_once(path: Path, key: str, write: Callable[[Path], None]) -> None:
    """Write unless the same rows are there already: a rewritten source would be scanned again."""
    mark = path.with_suffix(".rows")
    if path.exists() and mark.exists() and mark.read_text() == key:
        return
    with atomic_path(path) as temporary:
        write(temporary)
    mark.write_text(key)


# --- Hugging Face ---------------------------------------------------------------------------------


def is_hub_data(value: Any) -> bool:
    """Whether this is a dataset of the ``datasets`` package, without importing it."""
    return type(value).__module__.split(".")[0] == "datasets"


def _rows(data: Any, settings: DataSettings) -> Iterator[Row]:
    splits = data if isinstance(data, dict) else {"train": data}
    return HubReader("dataset", {name: undecoded(part) for name, part in splits.items()}, settings).rows()


def write_hub_source(
    data: Any, path: Path, *, image_column: str | None = None, label_column: str | None = None
) -> dict[str, Any]:
    """Write a Hugging Face dataset, or a dictionary of splits, to one Parquet table."""
    rows = _rows(data, DataSettings(image_column=image_column, label_column=label_column))
    first = next(rows)
    kind = pa.list_(pa.string()) if first.multi_label else pa.string()
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    texts = [("title", pa.string()), ("description", pa.string()), ("tags", pa.string())]
    schema = pa.schema([("image", image), ("label", kind), ("split", pa.string()), *texts])

    def write(target: Path) -> None:
        with pq.ParquetWriter(target, schema) as writer:
            for block in blocks(chain([first], rows), ROWS_AT_ONCE):
                writer.write_table(pa.Table.from_pylist([*map(_record, block)], schema=schema))

    splits = data if isinstance(data, dict) else {"train": data}
    key = fingerprint([(name, getattr(part, "_fingerprint", None)) for name, part in splits.items()])
    _write_once(path, key, write)
    return {"source": str(path), "image_column": "image", "label_column": "label"}


def _record(row: Row) -> dict[str, Any]:
    label = list(row.labels) if row.multi_label else next(iter(row.labels), None)
    return {**vars(row), "image": {"bytes": row.data, "path": None}, "label": label}


def hub_images(data: Any) -> Iterator[tuple[str, bytes]]:
    """Names and encoded images of a dataset without splits."""
    for number, row in enumerate(_rows(data, DataSettings())):
        yield f"row {number}", row.data or b""
