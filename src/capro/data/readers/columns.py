"""Which column is what, and how a cell becomes text or labels; shared by all readers."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.errors import DataError, did_you_mean

GUESSES = {
    "image": ("image", "file_name", "filename", "path", "image_path", "filepath", "file", "img", "jpg"),
    "label": ("label", "labels", "class", "category", "target", "cls"),
    "text": ("title", "caption", "text", "txt", "alt", "alt_text"),
    "description": ("description", "desc"),
    "tags": ("tags", "keywords", "hashtags"),
    "id": ("capro_id",),  # what an export of ours calls it: nobody else's column is taken unasked
    "split": ("split",),
}
MAX_CELL = 2**31 - 1  # captions of megabytes are fine; csv's default stops at 128 kB


@dataclass(frozen=True)
class Columns:
    """The name of the column for each purpose; None where there is none."""

    image: str | None = None
    label: str | None = None
    text: str | None = None
    description: str | None = None
    tags: str | None = None
    id: str | None = None
    split: str | None = None


def choose(names: Sequence[str], settings: DataSettings, *, place: str) -> Columns:
    """Match column names to purposes: as the settings say, else by common names.

    >>> choose(["file_name", "title", "label"], DataSettings(), place="metadata.csv").text
    'title'
    """
    chosen: dict[str, str | None] = {}
    lowered = {name.lower(): name for name in reversed(names)}
    for purpose, guesses in GUESSES.items():
        named = getattr(settings, f"{purpose}_column")
        if named is not None and named not in names:
            raise DataError(
                f"{place}: no column '{named}' for --{purpose}-column", hint=did_you_mean(named, names)
            )
        guessed = (lowered[guess] for guess in guesses if guess in lowered)
        chosen[purpose] = named if named is not None else next(guessed, None)
    return Columns(**chosen)


def text_of(value: Any) -> str:
    """A cell as text; lists are joined, numbers kept, nothing is lost but null.

    >>> text_of(["red", "car"]), text_of(None), text_of(3)
    ('red car', '', '3')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return " ".join(text_of(item) for item in value.values())
    if isinstance(value, list | tuple):
        return " ".join(text_of(item) for item in value)
    return str(value)


def label_names(value: Any, separator: str | None) -> tuple[tuple[str, ...], bool]:
    """A label cell as labels, and whether it was a list (multi-label).

    >>> label_names("cat", None), label_names(["cat", "dog"], None), label_names("cat; dog", ";")
    ((('cat',), False), (('cat', 'dog'), True), (('cat', 'dog'), True))
    """
    if separator and isinstance(value, str):
        parts: list[Any] = value.split(separator)
    elif isinstance(value, str) and value.lstrip().startswith("[") and value.rstrip().endswith("]"):
        try:
            parsed = json.loads(value)  # a list that went through a CSV
        except ValueError:
            parsed = None
        if not isinstance(parsed, list):
            return _names([value]), False
        parts = parsed
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return _names([value]), bool(separator)
    return _names(parts), True


def _names(parts: Sequence[Any]) -> tuple[str, ...]:
    names = (" ".join(text_of(part).split()) for part in parts)
    return tuple(dict.fromkeys(name for name in names if name))


def safe_relative(name: str) -> str | None:
    r"""A path from metadata, normalised; None if it leaves the folder or is no path.

    >>> safe_relative("cats/1.jpg"), safe_relative("cats\\1.jpg"), safe_relative("./a//b.jpg")
    ('cats/1.jpg', 'cats/1.jpg', 'a/b.jpg')
    >>> [safe_relative(name) for name in ("../1.jpg", "/etc/passwd", "C:/1.jpg", "a/../../b", "")]
    [None, None, None, None, None]
    """
    name = name.strip().replace("\\", "/")
    if not name or "\0" in name or name.startswith("/") or re.match(r"^[A-Za-z]:", name):
        return None
    parts = PurePosixPath(name).parts
    if ".." in parts or not parts:
        return None
    return "/".join(parts)


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path, symbolic links followed, stays in the folder."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


@dataclass(frozen=True)
class Record:
    """A row of a table file: its number (1 is the first after the header), cells, or a problem."""

    number: int
    cells: Mapping[str, Any]
    problem: str = ""
    replaced: bool = False  # not UTF-8: read with replacement characters


def header(path: Path) -> list[str]:
    """The column names of a table file."""
    if path.suffix == ".parquet":
        return list(_parquet(path).schema_arrow.names)
    if path.suffix == ".jsonl":
        for record in _jsonl(path):
            if not record.problem:
                return list(record.cells)
        return []
    return next(_csv_rows(path), ([], False))[0]


def records(path: Path, *, skip: str | None = None) -> Iterator[Record]:
    """Every row of a CSV, TSV, JSONL or Parquet file, bad ones with their problem.

    Args:
        path: The file; its ending says what it is.
        skip: A Parquet column not to read.
    """
    if path.suffix == ".parquet":
        return _parquet_records(path, skip)
    return _jsonl(path) if path.suffix == ".jsonl" else _csv(path)


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: not a Parquet file: {str(error).splitlines()[0]}", hint="check that the file is whole"
        ) from None


def _parquet_records(path: Path, skip: str | None) -> Iterator[Record]:
    file = _parquet(path)
    wanted = [name for name in file.schema_arrow.names if name != skip]
    names = class_names(file.schema_arrow)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            for cells in batch.to_pylist():
                number += 1
                for column, classes in names.items():
                    cells[column] = _class_name(cells.get(column), classes)
                yield Record(number, cells)
    except (pa.ArrowInvalid, OSError) as error:
        # what follows cannot be read: said once per row, since the footer knows how many there are
        for missing in range(number + 1, file.metadata.num_rows + 1):
            yield Record(missing, {}, problem=str(error).splitlines()[0])


def class_names(columns: pa.Schema) -> dict[str, list[str]]:
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


def _class_name(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_class_name(item, names) for item in value]
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return None if value == -1 else value  # -1: Hugging Face's "no label"


def _jsonl(path: Path) -> Iterator[Record]:
    with _open(path) as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            line, replaced = _decode(raw)
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Record(number, {}, problem=f"line {number}: {error}", replaced=replaced)
                continue
            if isinstance(cells, dict):
                yield Record(number, cells, replaced=replaced)
            else:
                yield Record(number, {}, problem=f"line {number}: not an object", replaced=replaced)


def _csv(path: Path) -> Iterator[Record]:
    rows = _csv_rows(path)
    names, _ = next(rows, ([], False))
    for number, (cells, replaced) in enumerate(rows, start=1):
        if len(cells) == len(names):
            yield Record(number, dict(zip(names, cells, strict=True)), replaced=replaced)
        else:
            problem = f"row {number}: {len(cells)} cells under {len(names)} column names"
            yield Record(number, dict(zip(names, cells, strict=False)), problem, replaced)


def _csv_rows(path: Path) -> Iterator[tuple[list[str], bool]]:
    """Cells of each row, header first, and whether bytes had to be replaced."""
    csv.field_size_limit(min(MAX_CELL, sys.maxsize))
    replaced = False

    def lines(file: Any) -> Iterator[str]:
        nonlocal replaced
        for raw in file:
            line, bad = _decode(raw)
            replaced = replaced or bad
            yield line

    with _open(path) as file:
        first = file.readline()
        file.seek(0)
        head, _ = _decode(first)
        tab = path.suffix == ".tsv" or (head.count("\t") > head.count(","))
        delimiter = "\t" if tab else ";" if head.count(";") > head.count(",") else ","
        reader = csv.reader(lines(file), delimiter=delimiter)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = [f"csv: {error}"]
            if cells:
                yield cells, replaced
            replaced = False


def _open(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint="check the file") from None


def _decode(raw: bytes) -> tuple[str, bool]:
    try:
        return raw.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        return raw.decode("utf-8-sig", "replace"), True
