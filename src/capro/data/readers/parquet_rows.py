"""Parquet files as records: group by group, in batches of bounded size; a damaged group costs its own rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capro.data.readers.base import Record
from capro.data.readers.columns import REPLACED, class_name
from capro.data.readers.writing import written_texts
from capro.errors import DataError, described, first_line
from capro.files import require_regular
from capro.pipeline.artefacts import check_table
from capro.stores import ObjectPath, Place

ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 32 << 20  # of a batch, by the average size of the group's rows
FOREIGN = (pa.ArrowException, OSError, ValueError, OverflowError)  # what pyarrow raises for damaged files
TEXTS = (pa.types.is_string, pa.types.is_large_string)


def parquet_file(path: Place, *, buffer_size: int = 0) -> pq.ParquetFile:
    """A Parquet file, as pyarrow opens it; of an object the columns of a row group come at once."""
    if isinstance(path, ObjectPath):
        return pq.ParquetFile(path.open(buffering=0), pre_buffer=True)
    require_regular(path)
    return pq.ParquetFile(path, buffer_size=buffer_size)


def open_parquet(path: Place) -> pq.ParquetFile:
    """A Parquet file; pages are read as they are needed."""
    try:
        file = parquet_file(path, buffer_size=1 << 20)
        _ = file.schema_arrow.names  # a name that is not UTF-8 fails here
    except FOREIGN as error:
        raise DataError(
            f"{path}: not a Parquet file: {first_line(error)}", hint="check that the file is complete"
        ) from None
    check_table(file.schema_arrow.metadata, place=str(path), again="export it again with this version")
    return file


def parquet_records(path: Place, wanted: Collection[str] | None, max_group_rows: int) -> Iterator[Record]:
    """Every row.

    Args:
        path: The file.
        wanted: The columns that are needed; None: all.
        max_group_rows: A larger row group is one record with that problem.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        columns = [name for name in names if wanted is None or name in wanted]
        labels = class_labels(file.schema_arrow)
        number = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if count > max_group_rows:
                detail = f"rows {number + 1} to {number + count}: {count} in row group {group + 1}"
                yield Record(number + 1, {}, detail, reason="large-group")
            else:
                yield from _group(file, group, columns, labels, number)
            number += count


def _group(
    file: pq.ParquetFile, group: int, columns: list[str], labels: Mapping[str, list[str]], before: int
) -> Iterator[Record]:
    """The rows of a group; from the first that cannot be read on, one record each with the problem."""
    number, last = before, before + file.metadata.row_group(group).num_rows
    try:
        for batch in file.iter_batches(_rows_at_once(file, group), row_groups=[group], columns=columns):
            for cells, replaced in _cells(batch):
                number += 1
                yield _record(number, cells, labels, replaced)
        problem = "the row group ends too early"
    except FOREIGN as error:
        problem = first_line(error)
    for missing in range(number + 1, last + 1):
        yield Record(missing, {}, problem=f"row {missing}: {problem}")


def _rows_at_once(file: pq.ParquetFile, group: int) -> int:
    found = file.metadata.row_group(group)
    average = int(found.total_byte_size) // max(1, int(found.num_rows))
    return max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // max(1, average)))


def _cells(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any] | Exception, bool]]:
    """The cells of each row of a batch or what made them unreadable, and whether bytes were replaced."""
    try:
        rows = batch.to_pylist()
    except FOREIGN:  # one bad cell fails the batch
        for number in range(batch.num_rows):
            yield _one_by_one(batch, number)
        return
    for row in rows:
        yield row, False


def _one_by_one(batch: pa.RecordBatch, number: int) -> tuple[dict[str, Any] | Exception, bool]:
    try:
        cells = {name: _value(batch.column(at)[number]) for at, name in enumerate(batch.schema.names)}
    except FOREIGN as error:
        return error, False
    return cells, any(isinstance(value, str) and REPLACED in value for value in cells.values())


def _value(cell: pa.Scalar) -> Any:
    """A cell as Python knows it; bytes of a text that are not UTF-8 become replacement characters."""
    if cell.is_valid and any(is_text(cell.type) for is_text in TEXTS):
        return cell.as_buffer().to_pybytes().decode("utf-8", "replace")
    return cell.as_py()


def _record(
    number: int, cells: dict[str, Any] | Exception, labels: Mapping[str, list[str]], replaced: bool
) -> Record:
    try:
        if isinstance(cells, Exception):
            raise cells
        for column, names in labels.items():
            if column in cells:
                cells[column] = class_name(cells[column], names)
    except (*FOREIGN, RecursionError) as error:
        return Record(number, {}, problem=f"row {number}: {described(error)}")
    return Record(number, written_texts(cells), replaced=replaced)


def class_labels(columns: pa.Schema) -> dict[str, list[str]]:
    """Names behind integer labels where Hugging Face's ClassLabel wrote them into the schema."""
    try:
        features = json.loads((columns.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else []:
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            found[column] = inner["names"]
    return found


def holds_bytes(file: Place, column: str) -> bool:
    """Whether a column holds image bytes (plain, or Hugging Face's {bytes, path})."""
    with open_parquet(file) as opened:
        kind = opened.schema_arrow.field(column).type
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        kind = kind.field(place).type if place >= 0 else pa.null()
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
