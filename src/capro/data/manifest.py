"""The manifest: one Parquet table with every row of the source, in one stable order.

Each row is a sample (status ``ok``) or was quarantined with a reason. A single-label manifest has a
``label`` column, a multi-label one ``labels``: that column decides the task. Every per-sample array
of later stages has the order of ``Manifest.samples``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capro.data.labels import MULTI_LABEL, SINGLE_LABEL, LabelKind
from capro.errors import DataError
from capro.pipeline.artefacts import MANIFEST, atomic_path
from capro.pipeline.run import Run

T = TypeVar("T")
SPLITS = ("train", "val", "test")
ROWS_PER_BLOCK = 10_000  # rows at a time

ROW_REASONS = {
    "missing-file": "the metadata names a file that is not there",
    "outside-folder": "the path leaves the data folder",
    "no-label": "no label in the metadata and none from the folder",
    "bad-row": "the row cannot be read",
    "bad-name": "the path or the label is not valid Unicode",
    "long-label": "a label has more characters than scan.max_label",
    "class-limit": "the label is new, and there are scan.max_classes classes already",
    "too-deep": "a cell is nested deeper than data.max_nesting",
    "large-group": "a Parquet row group has more rows than data.max_group_rows",
    "broken-file": "a file of the table cannot be read",
    "unexpected": "reading the row raised an unexpected error, which the detail names",
    "bad-split": "the split is not train, val or test",
    "duplicate-id": "an earlier row has the same id; only test samples of two sources may share one",
    "no-concept-tag": "NUS-WIDE, training: none of the concepts is among the image's tags",
    "no-verified-label": "NUS-WIDE, test: people verified none of the concepts in the image",
    "label-kind": "one label where the source has lists, or the other way round",
    "not-downloaded": "the crawler's status is not success",
    "truncated-shard": "the shard ends within this sample",
    "no-image": "the sample has no image",
    "unreadable": "the file cannot be opened",
    "not-a-file": "a pipe, device, socket or folder instead of a file",
    "damaged-shard": "bytes of the shard are not members of a tar; the samples in them are lost",
}


@dataclass(frozen=True)
class Source:
    """Where the images of some rows are; stored in the manifest's schema."""

    kind: Literal["files", "tars", "parquet", "hub"]
    root: str
    image_column: str | None = None


@dataclass
class Row:
    """One row of a source: a reader makes it, ``scan`` adds what it finds in the image.

    ``path`` is relative to the source's root. ``offset`` and ``size`` locate an image in a tar, ``row`` in a
    Parquet file or hub dataset. ``data`` holds the image's bytes where the reader has them at hand. ``problem``
    is the reason why the row was rejected.
    """

    id: str
    path: str
    split: str = "train"
    source: int = 0  # number of the source
    offset: int | None = None
    size: int | None = None
    row: int | None = None
    title: str = ""
    description: str = ""
    tags: str = ""
    labels: tuple[str, ...] = ()
    multi_label: bool = False  # the labels were a list
    problem: str | None = None
    detail: str = ""
    data: bytes | None = field(default=None, repr=False, compare=False)
    # of the image
    width: int | None = None
    height: int | None = None
    format: str | None = None
    sha256: str | None = None


def schema(*, multi_label: bool, sources: Sequence[Source]) -> pa.Schema:
    """The manifest's columns; the sources travel in the metadata."""
    labels = ("labels", pa.list_(pa.string())) if multi_label else ("label", pa.string())
    columns = [
        *[("id", pa.string()), ("split", pa.string()), ("source", pa.int16()), ("path", pa.string())],
        *[("offset", pa.int64()), ("size", pa.int64()), ("row", pa.int64())],
        *[("title", pa.string()), ("description", pa.string()), ("tags", pa.string()), labels],
        *[("width", pa.int32()), ("height", pa.int32()), ("format", pa.string()), ("sha256", pa.string())],
        *[("status", pa.string()), ("reason", pa.string()), ("detail", pa.string())],
    ]
    metadata = {"capro.sources": json.dumps([asdict(source) for source in sources])}
    return pa.schema(columns, metadata=metadata)


def write_manifest(path: Path, records: Iterable[dict[str, Any]], columns: pa.Schema) -> None:
    """Stream records into a manifest, whole or not at all; memory is that of one block of rows."""
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, columns) as writer:
        for block in blocks(records, ROWS_PER_BLOCK):
            writer.write_table(pa.Table.from_pylist(block, schema=columns))


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of this many, the last one shorter.

    >>> list(blocks("abc", 2))
    [['a', 'b'], ['c']]
    """
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


@dataclass(frozen=True)
class Manifest:
    """A manifest in memory.

    >>> table = pa.Table.from_pylist([], schema=schema(multi_label=False, sources=[]))
    >>> Manifest(table).task
    'single'
    """

    table: pa.Table

    @staticmethod
    def load(path: Path) -> Manifest:
        """Read a manifest that ``capro scan`` wrote."""
        try:
            table = pq.read_table(path)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file", hint="run `capro scan` first") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: damaged: {error}", hint="run `capro scan` again") from None
        return Manifest(table)

    @property
    def kind(self) -> LabelKind:
        """Single-label or multi-label, by the column that is there."""
        return SINGLE_LABEL if "label" in self.table.column_names else MULTI_LABEL

    @property
    def multi_label(self) -> bool:
        """Whether a sample may carry any number of labels."""
        return self.kind.multi_label

    @property
    def task(self) -> Literal["single", "multi"]:
        """``single`` or ``multi``."""
        return self.kind.task

    @property
    def sources(self) -> list[Source]:
        """Where the images are."""
        metadata = self.table.schema.metadata or {}
        return [Source(**value) for value in json.loads(metadata.get(b"capro.sources", b"[]"))]

    @property
    def content(self) -> str:
        """A hash of all rows; where the sources lie is left out, what is in them is not."""
        digest = hashlib.sha256()
        for begin in range(0, len(self.table), ROWS_PER_BLOCK):
            rows = self.table.slice(begin, ROWS_PER_BLOCK).to_pylist()
            digest.update(json.dumps(rows, sort_keys=True, ensure_ascii=False).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All rows, with ``labels`` as tuples in both tasks."""
        frame: pd.DataFrame = self.table.to_pandas()
        if not self.multi_label:
            labels = [(label,) if isinstance(label, str) else () for label in frame.pop("label")]
        else:
            labels = [() if cell is None else tuple(cell) for cell in frame["labels"]]
        frame["labels"] = pd.Series(labels, index=frame.index, dtype=object)
        return frame

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The rows with status ok, reindexed: the order of every per-sample array."""
        ok = self.frame[self.frame["status"] == "ok"]
        return ok.reset_index(drop=True)

    def split(self, name: str) -> NDArray[np.int64]:
        """Positions in ``samples`` of one split, ascending."""
        return np.flatnonzero((self.samples["split"] == name).to_numpy())

    def label_names(self, split: str = "train") -> list[str]:
        """The labels that occur in a split, sorted."""
        rows = self.samples.loc[self.samples["split"] == split, "labels"]
        return sorted({name for labels in rows for name in labels})


def manifest_of(run: Run) -> Manifest:
    """The manifest of a run that has been scanned; read once, until it is scanned again."""
    return run.read_with(MANIFEST, lambda file: _cached(file.resolve(), run.stamp("scan")))


@lru_cache(maxsize=4)
def _cached(path: Path, _stamp: int | None) -> Manifest:  # another scan is another manifest
    return Manifest(pq.read_table(path))
