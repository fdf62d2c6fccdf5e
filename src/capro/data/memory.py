"""Data that is in memory, written down as a source that the readers know."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.data.readers.columns import Columns, choose, label_names, text_of
from capro.data.readers.hub import image_bytes
from capro.errors import DataError
from capro.run.artefacts import atomic_path
from capro.run.fingerprints import fingerprint

BLOCK = 256  # rows in memory


def write_frame_source(
    frame: pd.DataFrame, path: Path, *, image_column: str | None = None, label_column: str | None = None
) -> dict[str, Any]:
    """Write a DataFrame with a column of paths; returns settings of ``data`` that read it.

    Paths are made relative to the folder that they have in common: no reader follows absolute ones.
    """
    frame = frame.reset_index(drop=True)
    frame.columns = frame.columns.map(str)
    named = DataSettings(image_column=image_column, label_column=label_column)
    columns = choose(list(frame.columns), named, place="DataFrame")
    if columns.image is None:
        raise DataError(
            f"DataFrame: no column with paths among {', '.join(frame.columns[:12])}",
            hint="call it 'image' or 'path', or name it with data__image_column",
        )
    if columns.label is None:
        raise DataError("DataFrame: no column with labels", hint="call it 'label', or give y")
    given = [os.path.abspath(value) if _is_path(value) else "" for value in frame[columns.image]]
    folders = {os.path.dirname(value) for value in given if value}
    if not folders:
        raise DataError("DataFrame: no row has a path", hint="give paths of image files")
    root = os.path.commonpath(folders)
    frame[columns.image] = [os.path.relpath(value, root) if value else None for value in given]
    frame[columns.label] = [_label(value) for value in frame[columns.label]]
    _replace(path, frame)
    found = {"source": str(path), "image_root": root, "image_column": columns.image}
    return found | {"label_column": columns.label}


def with_labels(frame: pd.DataFrame, y: Sequence[Any]) -> pd.DataFrame:
    """The frame with a column ``label``."""
    if len(y) != len(frame):
        raise DataError(f"{len(frame)} rows, but {len(y)} labels in y", hint="one label per row")
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


def _replace(path: Path, frame: pd.DataFrame) -> None:
    """Write unless the same rows are there already: a rewritten source would be scanned again."""
    mark = path.with_suffix(".rows")
    key = fingerprint([list(frame.columns), frame.astype(str).to_numpy().tolist()])
    if path.exists() and mark.exists() and mark.read_text() == key:
        return
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
    mark.write_text(key)


# --- Hugging Face ---------------------------------------------------------------------------------


def is_hub_data(value: Any) -> bool:
    """Whether this is a data set of the ``datasets`` package, without importing it."""
    return type(value).__module__.split(".")[0] == "datasets"


def _splits(data: Any) -> dict[str, Any]:
    return dict(data) if isinstance(data, dict) else {"train": data}


def _undecoded(data: Any) -> Any:
    """Images as encoded bytes, not as decoded pictures."""
    import datasets

    for column, feature in (data.features or {}).items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(column, datasets.Image(decode=False))
    return data


def _columns(data: Any, named: DataSettings) -> Columns:
    columns = choose(list(data.column_names), named, place="data set")
    if columns.image is None:
        raise DataError("data set: no image column", hint="name it with data__image_column")
    return columns


def write_hub_source(
    data: Any, path: Path, *, image_column: str | None = None, label_column: str | None = None
) -> dict[str, Any]:
    """Write a Hugging Face data set, or a dictionary of splits, to one Parquet table."""
    named = DataSettings(image_column=image_column, label_column=label_column)
    splits = _splits(data)
    first = next(iter(splits.values()))
    names = _class_names(first, _columns(first, named).label)
    sample = first[0][_columns(first, named).label] if _columns(first, named).label else None
    kind = pa.list_(pa.string()) if isinstance(sample, list) else pa.string()
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    texts = [("title", pa.string()), ("description", pa.string()), ("tags", pa.string())]
    schema = pa.schema([("image", image), ("label", kind), ("split", pa.string()), *texts])
    mark = path.with_suffix(".rows")
    key = fingerprint([(name, getattr(part, "_fingerprint", None)) for name, part in splits.items()])
    if not (path.exists() and mark.exists() and mark.read_text() == key):
        with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for split, part in splits.items():
                for block in _blocks(part, split, named, names):
                    writer.write_table(pa.Table.from_pylist(block, schema=schema))
        mark.write_text(key)
    return {"source": str(path), "image_column": "image", "label_column": "label"}


def _blocks(data: Any, split: str, named: DataSettings, names: list[str]) -> Iterator[list[dict[str, Any]]]:
    columns = _columns(data, named)
    block: list[dict[str, Any]] = []
    for cells in _undecoded(data):
        label = cells.get(columns.label) if columns.label else None
        several = isinstance(label, list)
        values: list[Any] = label if isinstance(label, list) else [label]
        found, _ = label_names([_name(value, names) for value in values], None)
        block.append(
            {
                "image": {"bytes": image_bytes(cells[columns.image]), "path": None},
                "label": list(found) if several else next(iter(found), None),
                "split": split.replace("validation", "val"),
                "title": text_of(cells.get(columns.text) if columns.text else None),
                "description": text_of(cells.get(columns.description) if columns.description else None),
                "tags": text_of(cells.get(columns.tags) if columns.tags else None),
            }
        )
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


def _class_names(data: Any, column: str | None) -> list[str]:
    feature = (data.features or {}).get(column) if column else None
    inner = getattr(feature, "feature", feature)
    return list(getattr(inner, "names", None) or [])


def _name(value: Any, names: list[str]) -> Any:
    if names and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return value


def hub_images(data: Any) -> Iterator[tuple[str, bytes]]:
    """Names and encoded images of a data set without splits."""
    column = _columns(data, DataSettings()).image
    for number, cells in enumerate(_undecoded(data)):
        yield f"row {number}", image_bytes(cells[column]) or b""
