"""What the writers of formats share: what they are given, and tables as plain values."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

IMAGE_MODES = ("none", "link", "copy")
SHARD_SIZE = 10_000  # samples per tar or Parquet shard


class Pictures(Protocol):
    """Names of the exported pictures, and ways to write or read them (export.cleaned)."""

    names: list[str]
    mode: str

    def read(self, number: int) -> bytes: ...
    def path(self, number: int) -> Path | None: ...
    def write_all(self, below: str = "") -> None: ...


@dataclass(frozen=True)
class Writer:
    """How cleaned data is written in a format.

    Attributes:
        write: Gets a new folder, the cleaned table, its pictures and the names of the classes.
        images: What may be done with the pictures; the first is done unless another is asked for.
        below: Folder of the pictures in the export.
        by_class: With one label a picture lies in the folder of its class instead.
        entry: The file that ``capro scan`` is given; the folder itself if empty.
    """

    write: Callable[[Path, pd.DataFrame, Pictures, Sequence[str]], None]
    images: tuple[str, ...] = IMAGE_MODES
    below: str = ""
    by_class: bool = False
    entry: str = ""


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """A CSV in which lists are JSON, as ``capro scan`` reads them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        for record in plain_records(table):
            writer.writerow(
                json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
                for value in record.values()
            )


def plain_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with cells as Python knows them: NaN becomes None, floats have six digits."""
    rows = table.itertuples(index=False, name=None)
    return [dict(zip(table.columns, map(_plain, row), strict=True)) for row in rows]


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 6)
