"""Hostile and mutated tables (CSV, TSV, JSONL, Parquet, folders with metadata): every row is accounted for."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capro.errors import CaproError
from soak.attack import Attack, Broken, Outcome, Strike
from soak.mutations import encodable, flipped, text, value
from tests.data.corpus import png
from tests.data.scanning import scan_it

PICTURES = ("a.png", "b b.png", "ü.png")
COLUMNS = ("image", "label", "title", "description", "tags", "id", "split", "other")


def _ready(_: Path) -> Strike:
    pictures = {name: png(number) for number, name in enumerate(PICTURES)}

    def strike(_number: int, rng: random.Random, empty: Path) -> Outcome:
        for name, data in pictures.items():
            (empty / name).write_bytes(data)
        kind = rng.choice(sorted(WRITERS))
        rows = [_row(rng) for _ in range(rng.choice((1, 2, 5, 30)))]
        file = WRITERS[kind](empty, rows, rng)
        damaged = rng.random() < 0.5
        if damaged:
            file.write_bytes(flipped(file.read_bytes(), rng))
        source = empty if file.name.startswith("metadata") else file
        check(source, empty / "out", None if damaged or source == empty else len(rows))
        return Outcome(inputs=1)

    return strike


def check(source: Path, out: Path, rows: int | None) -> None:
    """Scan a source: rows are read or quarantined, or one message says what is wrong with it as a whole."""
    try:
        _, summary = scan_it(source, out)
    except CaproError as error:
        if not error.hint:
            raise Broken(f"no hint: {error}") from None
        return
    except AssertionError as error:
        raise Broken(f"rows that are not accounted for: {error}") from None
    if rows is not None and summary["rows"] != rows:
        raise Broken(f"{rows} rows given, {summary['rows']} accounted for")


def _row(rng: random.Random) -> dict[str, str]:
    row = {
        "image": rng.choice(PICTURES) if rng.random() < 0.8 else text(rng),
        "label": rng.choice(("cat", "dog")),
    }
    for name in COLUMNS[2:]:
        if rng.random() < 0.5:
            row[name] = "train" if name == "split" and rng.random() < 0.7 else text(rng)
    if rng.random() < 0.3:
        row["label"] = text(rng)
    return row


def _csv(folder: Path, rows: list[dict[str, str]], rng: random.Random, name: str = "table.csv") -> Path:
    path = folder / name
    dialect: dict[str, Any] = {
        "delimiter": "\t" if name.endswith("tsv") else rng.choice(",;"),
        "quoting": csv.QUOTE_ALL,
    }
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, **dialect)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _jsonl(folder: Path, rows: list[dict[str, str]], rng: random.Random, name: str = "table.jsonl") -> Path:
    path = folder / name
    values: list[dict[str, Any]] = [dict(row) for row in rows]
    for row in values:
        if rng.random() < 0.3:
            row[rng.choice(COLUMNS)] = value(rng)
    path.write_text("".join(json.dumps(row) + "\n" for row in values), "utf-8", "replace")
    return path


def _parquet(folder: Path, rows: list[dict[str, str]], rng: random.Random) -> Path:
    path = folder / "table.parquet"
    columns: dict[str, Any] = {
        name: pa.array([None if name not in row else encodable(row[name]) for row in rows], pa.string())
        for name in COLUMNS
    }
    if rng.random() < 0.3:
        columns["image"] = pa.array(
            [{"bytes": png(1), "path": row["image"][:9]} for row in map(_plain, rows)]
        )
    if rng.random() < 0.2:  # bytes that are no text
        broken = [rng.randbytes(4) for _ in rows]
        columns[rng.choice(COLUMNS[1:])] = pa.array(broken, pa.binary()).view(pa.string())
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def _plain(row: dict[str, str]) -> dict[str, str]:
    return {name: encodable(cell) for name, cell in row.items()}


WRITERS: dict[str, Callable[[Path, list[dict[str, str]], random.Random], Path]] = {
    "csv": _csv,
    "tsv": lambda folder, rows, rng: _csv(folder, rows, rng, "table.tsv"),
    "jsonl": _jsonl,
    "parquet": _parquet,
    "metadata.csv": lambda folder, rows, rng: _csv(folder, rows, rng, "metadata.csv"),
    "metadata.jsonl": lambda folder, rows, rng: _jsonl(folder, rows, rng, "metadata.jsonl"),
}

ATTACK = Attack("tables", goal=25_000, share=4, ready=_ready, batch=200)
