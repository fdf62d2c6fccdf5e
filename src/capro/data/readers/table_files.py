"""Table files as records: CSV and TSV with their encoding and separator, JSONL, Parquet.

Excel writes CSV files in the encoding of the machine (cp1252 in Western Europe) or in UTF-16, mostly with
semicolons. The encoding is taken from the file's first bytes, else UTF-8 where the whole file is valid or
nearly so, else cp1252; ``data.encoding`` names another. Cost: one pass over the bytes of a text file.
"""

from __future__ import annotations

import codecs
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from capro.data.readers.base import Intake
from capro.data.readers.columns import REPLACED, Columns, class_name, json_object
from capro.errors import DataError, first_line

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
MAX_CELL = 2**31 - 1  # captions of megabytes are fine; csv's default stops at 128 kB
UTF8 = "utf-8-sig"  # UTF-8, with or without a mark at the start
WINDOWS = "cp1252"
MARKS = [  # at the start of a file; the longer ones first
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, UTF8),
]  # fmt: skip
BYTES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Record:
    """A row of a table file: its number (1 is the first after the header), cells, or a problem."""

    number: int
    cells: Mapping[str, Any]
    problem: str = ""
    replaced: bool = False  # has bytes outside the encoding: read with replacement characters


def header(path: Path, encoding: str = "auto") -> list[str]:
    """The column names of a table file."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        return list(_parquet(path).schema_arrow.names)
    if kind == ".jsonl":
        return next((list(record.cells) for record in _jsonl(path, encoding) if not record.problem), [])
    return next(_csv_rows(path, encoding), [])


def records(path: Path, encoding: str = "auto") -> Iterator[Record]:
    """Every row of a CSV, TSV, JSONL or Parquet file (by its ending), bad ones with their problem."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _parquet_records(path)
    return _jsonl(path, encoding) if kind == ".jsonl" else _csv(path, encoding)


def file_intake(files: Sequence[Path], names: Sequence[str], columns: Columns, encoding: str) -> Intake:
    """How table files of the same columns were read."""
    used = columns.used()
    found = {file.name: encoding_of(file) for file in files} if encoding == "auto" else {}
    return Intake(
        columns=used,
        unused=[name for name in names if name.strip() and name not in used.values()],
        guessed_encodings={name: each for name, each in found.items() if each == WINDOWS},
    )


def encoding_of(path: Path, chosen: str = "auto") -> str | None:
    """The encoding in which a text file is read; None for a Parquet file, which has none.

    Args:
        path: The file.
        chosen: A name, or ``auto`` to find out.
    """
    if path.suffix.lower() == ".parquet":
        return None
    if chosen != "auto":
        return UTF8 if codecs.lookup(chosen).name == "utf-8" else chosen
    try:
        stat = path.stat()
        return _detected(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint="check the file") from None


@lru_cache(maxsize=64)
def _detected(path: Path, *_state: int) -> str:
    """By the first bytes, else UTF-8 if the file is valid or nearly so, else cp1252."""
    with path.open("rb") as file:
        head = file.read(4096)
        for mark, name in MARKS:
            if head.startswith(mark):
                return name
        for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
            if zeros.count(0) > len(zeros) // 2:  # every second byte of Latin letters
                return name
        good, bad = _non_ascii(file)
    return UTF8 if good >= bad else WINDOWS


def _non_ascii(file: BinaryIO) -> tuple[int, int]:
    """Characters beyond ASCII that are right in UTF-8, and bytes that are not."""
    file.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # a wrong byte: U+DC80 to U+DCFF
    good = bad = 0
    while chunk := file.read(BYTES_AT_ONCE):
        text = decoder.decode(chunk)
        wrong = len(text) - len(text.encode("utf-8", "ignore").decode("utf-8"))
        good += len(text) - len(text.encode("ascii", "ignore")) - wrong
        bad += wrong
    return good, bad


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: not a Parquet file: {first_line(error)}", hint="check that the file is whole"
        ) from None


def _parquet_records(path: Path) -> Iterator[Record]:
    file = _parquet(path)
    names = _class_labels(file.schema_arrow)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=256):
            for cells in batch.to_pylist():
                number += 1
                numbered = {column: class_name(cells.get(column), known) for column, known in names.items()}
                yield Record(number, cells | numbered)
    except (pa.ArrowInvalid, OSError) as error:
        # what follows cannot be read: one record per row, since the footer has their number
        for missing in range(number + 1, file.metadata.num_rows + 1):
            yield Record(missing, {}, problem=first_line(error))


def _class_labels(columns: pa.Schema) -> dict[str, list[str]]:
    """Names behind integer labels where Hugging Face's ClassLabel wrote them into the schema."""
    try:
        features = json.loads((columns.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    found = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            found[column] = inner["names"]
    return found


def _jsonl(path: Path, encoding: str) -> Iterator[Record]:
    with _open(path, encoding) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            cells, problem = json_object(line)
            yield Record(number, cells, problem and f"line {number}: {problem}", REPLACED in line)


def _csv(path: Path, encoding: str) -> Iterator[Record]:
    rows = _csv_rows(path, encoding)
    names = next(rows, [])
    for number, cells in enumerate(rows, start=1):
        fits = len(cells) == len(names)
        problem = "" if fits else f"row {number}: {len(cells)} cells under {len(names)} column names"
        replaced = any(REPLACED in cell for cell in cells)
        yield Record(number, dict(zip(names, cells, strict=False)), problem, replaced)


def _csv_rows(path: Path, encoding: str) -> Iterator[list[str]]:
    """Cells of each row, header first."""
    csv.field_size_limit(min(MAX_CELL, sys.maxsize))
    with _open(path, encoding) as file:
        reader = csv.reader(file, delimiter=_separator(file, path))
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = [f"csv: {error}"]
            if cells:
                yield cells


def _separator(file: TextIO, path: Path) -> str:
    """What separates the cells; leaves the file at its header. Excel may write ``sep=;`` above it."""
    head = file.readline()
    if head.lower().startswith("sep=") and len(head.strip()) == 5:
        return head[4]
    file.seek(0)
    if path.suffix.lower() == ".tsv" or head.count("\t") > max(head.count(","), head.count(";")):
        return "\t"
    return ";" if head.count(";") > head.count(",") else ","


def _open(path: Path, encoding: str) -> TextIO:
    try:
        return path.open(encoding=encoding_of(path, encoding), errors="replace", newline="\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint="check the file") from None
