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
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings
from capro.data.manifest import Row
from capro.errors import DataError, did_you_mean, first_line

GUESSES = {
    "image": ("image", "file_name", "filename", "path", "image_path", "filepath", "file", "img", "jpg"),
    "label": ("label", "labels", "class", "category", "target", "cls"),
    "text": ("title", "caption", "text", "txt", "alt", "alt_text"),
    "description": ("description", "desc"),
    "tags": ("tags", "keywords", "hashtags"),
    "id": ("capro_id",),  # of our own exports; no other column is taken for an id without being named
    "split": ("split",),
}
REPLACED = "\N{REPLACEMENT CHARACTER}"  # for bytes that are not UTF-8
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
    separator: str | None = None  # splits a label cell

    def row(self, cells: Mapping[Any, Any], **known: Any) -> Row:
        """Cells as a row: the one way from a source's columns to labels, texts, id and split.

        Args:
            cells: By column.
            known: Further fields of the row. ``id`` and ``split`` are for a row whose cells do not have
                them; all others win over the cells.
        """
        labels, listed = label_names(cells.get(self.label), self.separator)
        found = {
            "title": text_of(cells.get(self.text)),
            "description": text_of(cells.get(self.description)),
            "tags": text_of(cells.get(self.tags)),
            "labels": labels,
            "listed": listed,
            **known,
        }
        for purpose, column in (("id", self.id), ("split", self.split)):
            found[purpose] = text_of(cells.get(column)) or known[purpose]
        return Row(**found)


def named_columns(settings: DataSettings) -> dict[str, str]:
    """The columns that the settings name, by purpose."""
    named = {purpose: getattr(settings, f"{purpose}_column") for purpose in GUESSES}
    return {purpose: column for purpose, column in named.items() if column is not None}


def choose_columns(
    names: Sequence[str], settings: DataSettings, *, place: str, strict: bool = True
) -> Columns:
    """Match column names to purposes: as the settings name them, else by common names.

    Args:
        names: Of the columns.
        settings: Which columns were named.
        place: Where the columns are, for the message.
        strict: Refuse a column that was named and is not there.

    >>> choose_columns(["file_name", "title", "label"], DataSettings(), place="metadata.csv").text
    'title'
    """
    named = named_columns(settings)
    for purpose, column in named.items():
        if strict and column not in names:
            raise DataError(
                f"{place}: no column '{column}' for --{purpose}-column", hint=did_you_mean(column, names)
            )
    lowered = {name.lower(): name for name in reversed(names)}
    guessed = {
        purpose: next((lowered[guess] for guess in guesses if guess in lowered), None)
        for purpose, guesses in GUESSES.items()
    }
    return Columns(**guessed | named, separator=settings.label_separator)


def image_column(columns: Columns, names: Sequence[str], *, place: str) -> str:
    """The column with the images, which there must be."""
    if columns.image is None:
        raise DataError(
            f"{place}: no column with images among {', '.join(names[:12])}",
            hint="name it with --image-column (data.image_column)",
        )
    return columns.image


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
    listed = bool(separator)
    if isinstance(value, str):
        if separator:
            value = value.split(separator)
        elif value.strip().startswith("[") and value.strip().endswith("]"):
            try:
                parsed = json.loads(value)  # a list that went through a CSV
            except ValueError:
                parsed = None
            value = parsed if isinstance(parsed, list) else value
    if isinstance(value, list | tuple):
        listed = True
    else:
        value = [value]
    names = (" ".join(text_of(part).split()) for part in value)
    return tuple(dict.fromkeys(name for name in names if name)), listed


def class_name(value: Any, names: Sequence[Any]) -> Any:
    """The name behind a number, where a source numbers its classes; a list of them for a list.

    >>> class_name(1, ["cat", "dog"]), class_name([0, -1], ["cat", "dog"]), class_name("cat", [])
    ('dog', ['cat', None], 'cat')
    """
    if isinstance(value, list):
        return [class_name(item, names) for item in value]
    if names and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None  # -1: Hugging Face's "no label"
    return value


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


def safe_place(name: str, detail: str) -> dict[str, Any]:
    """The path of a row by a published list, or that it leaves the folder."""
    path = safe_relative(name)
    return {"path": path} if path else {"path": "", "problem": "outside-folder", "detail": detail}


def is_inside(root: Path, path: Path) -> bool:
    """Whether a path, symbolic links followed, stays in the folder."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def file_below(root: Path, name: str) -> dict[str, Any]:
    """The path of a row whose image is a file below a folder, or why it cannot be used."""
    relative = safe_relative(name)
    if relative is None or not is_inside(root, root / relative):
        return {"path": "", "problem": "outside-folder", "detail": name}
    if not (root / relative).is_file():
        return {"path": relative, "problem": "missing-file", "detail": name}
    return {"path": relative}


# --- table files ----------------------------------------------------------------------------------


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
        return next((list(record.cells) for record in _jsonl(path) if not record.problem), [])
    return next(_csv_rows(path), [])


def records(path: Path) -> Iterator[Record]:
    """Every row of a CSV, TSV, JSONL or Parquet file (by its ending), bad ones with their problem."""
    if path.suffix == ".parquet":
        return _parquet_records(path)
    return _jsonl(path) if path.suffix == ".jsonl" else _csv(path)


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


def _jsonl(path: Path) -> Iterator[Record]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            cells, problem = json_object(line)
            yield Record(number, cells, problem and f"line {number}: {problem}", REPLACED in line)


def json_object(text: str) -> tuple[dict[str, Any], str]:
    """The fields of a JSON object, or what is wrong with it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {}, str(error)
    return (found, "") if isinstance(found, dict) else ({}, "not an object")


def _csv(path: Path) -> Iterator[Record]:
    rows = _csv_rows(path)
    names = next(rows, [])
    for number, cells in enumerate(rows, start=1):
        fits = len(cells) == len(names)
        problem = "" if fits else f"row {number}: {len(cells)} cells under {len(names)} column names"
        replaced = any(REPLACED in cell for cell in cells)
        yield Record(number, dict(zip(names, cells, strict=False)), problem, replaced)


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """Cells of each row, header first."""
    csv.field_size_limit(min(MAX_CELL, sys.maxsize))
    with _open(path) as file:
        head = file.readline()
        file.seek(0)
        tab = path.suffix == ".tsv" or (head.count("\t") > head.count(","))
        delimiter = "\t" if tab else ";" if head.count(";") > head.count(",") else ","
        reader = csv.reader(file, delimiter=delimiter)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = [f"csv: {error}"]
            if cells:
                yield cells


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig", errors="replace", newline="\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint="check the file") from None
