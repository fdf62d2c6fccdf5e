"""Scan: from readers to a manifest in which every row of the source is accounted for."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capro.config import ScanSettings
from capro.data.images import ImageProblem, decode
from capro.data.labels import joined_names
from capro.data.manifest import SPLITS, Manifest, Row, Source, blocks, schema, write_manifest
from capro.data.pixels import REQUESTS, StoredImages, in_order
from capro.data.readers.base import Reader, ReadingNotes
from capro.data.readers.columns import valid_text
from capro.data.summary import summarise
from capro.errors import CaproError, DataError, described
from capro.files import NotAFileError
from capro.pipeline.artefacts import MANIFEST, QUARANTINE, SUMMARY, atomic_path, write_json
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.shards import see_folder
from capro.stores import is_address
from capro.wording import many

BLOCK = 256  # rows of a task of a remote engine
IN_FLIGHT = 128  # rows being decoded at once: bounds memory whatever the source's size
LABELS_AHEAD = 100  # labelled rows that say whether labels are lists: one strange row decides nothing


def scan_sources(
    readers: Sequence[Reader],
    folder: Path,
    settings: ScanSettings,
    *,
    unlabelled: bool = False,
    join_labels: bool = False,
    classes: Collection[str] = (),
    progress: Callable[[int], None] = lambda _: None,
    engine: Engine = THIS_PROCESS,
) -> dict[str, Any]:
    """Read every row, check every image, write manifest, quarantine and summary.

    Args:
        readers: Sources, in the order of the manifest.
        folder: Where ``manifest.parquet``, ``quarantine.parquet`` and ``summary.json`` go.
        settings: Limits of images, texts and labels.
        unlabelled: Training rows have no labels: what a source has as such is left out.
        join_labels: Labels that differ only in case, blanks, hyphens or underscores become one.
        classes: Names that joined labels take where they are among them.
        progress: Called with the number of rows done in each step.
        engine: Who reads and checks the images; rows are listed here.

    Returns:
        The summary, as data.
    """
    path = folder / MANIFEST.file
    sources = [reader.source for reader in readers]
    stored = any(is_address(source.root) for source in sources)
    threads = settings.workers or (REQUESTS if stored else engine.threads)
    rows = _all_rows(readers, unlabelled)
    multi_label = False
    if not unlabelled:
        multi_label, rows = _peek(rows)
    checked = _check_in_threads(sources, settings, threads, rows)
    if engine.remote:
        work = partial(_check_block, sources, settings, threads)
        checked = (row for block in engine.map(work, blocks(rows, BLOCK)) for row in block)
    records = _Records(multi_label, settings, unlabelled)
    columns = schema(multi_label=multi_label, sources=sources)
    write_manifest(path, records.of(checked, progress), columns)
    manifest = Manifest.load(path)
    joined = _joined(manifest, classes) if join_labels else {}
    if joined:
        manifest = Manifest(_renamed(manifest, joined))
        with atomic_path(path) as temporary:
            pq.write_table(manifest.table, temporary)
    bad = manifest.table.filter(pc.field("status") != "ok")
    with atomic_path(folder / QUARANTINE.file) as temporary:
        pq.write_table(bad, temporary)
    summary = summarise(
        manifest,
        notes=[*(reader.notes for reader in readers), ReadingNotes(Counter(cut_texts=records.cut_texts))],
        joined=joined,
    )
    if not summary["samples"]:
        reasons = ", ".join(f"{name} ({n})" for name, n in summary["quarantined_by"].items())
        raise DataError(
            f"{many(summary['rows'], 'row')}, none of which can be used: {reasons or 'the source is empty'}",
            hint=f"{folder / QUARANTINE.file} has the reason for each row",
        )
    write_json(folder / SUMMARY.file, summary)
    return summary


def _joined(manifest: Manifest, classes: Collection[str]) -> dict[str, str]:
    """Which labels become another one; training samples decide how a class is called."""
    samples = manifest.samples
    training = Counter(
        name for labels in samples.loc[samples["split"] == "train", "labels"] for name in labels
    )
    everywhere = {name: training[name] for labels in samples["labels"] for name in labels}
    return joined_names(everywhere, classes)


def _renamed(manifest: Manifest, names: Mapping[str, str]) -> pa.Table:
    """The table with other labels; labels of a sample that became the same one are one."""
    labels = [[*dict.fromkeys(names.get(name, name) for name in row)] for row in manifest.frame["labels"]]
    first = [next(iter(row), None) for row in labels]
    table, column = manifest.table, "labels" if manifest.multi_label else "label"
    at, field = table.schema.get_field_index(column), table.schema.field(column)
    return table.set_column(at, field, pa.array(labels if manifest.multi_label else first, field.type))


def _all_rows(readers: Sequence[Reader], unlabelled: bool) -> Iterator[Row]:
    """The rows of all sources; without labels only rows to test on keep theirs."""
    for number, reader in enumerate(readers):
        for row in reader.rows():
            row.source = number
            if unlabelled and row.split == "train":
                row.labels, row.multi_label = (), False
            yield row


def _peek(rows: Iterator[Row]) -> tuple[bool, Iterator[Row]]:
    """Whether most of the first labelled rows are multi-label, and all rows."""
    ahead: list[Row] = []
    lists = Counter[bool]()
    for row in rows:
        if len(ahead) > LABELS_AHEAD:
            row.data = None  # it is read again: all rows of a source without labels wait here
        ahead.append(row)
        if not row.problem and (row.labels or row.multi_label):
            lists[row.multi_label] += 1
            if lists.total() == LABELS_AHEAD:
                break
    return any(most for most, _ in lists.most_common(1)), itertools.chain(ahead, rows)  # of a tie the first


def _check_in_threads(
    sources: Sequence[Source], settings: ScanSettings, threads: int, rows: Iterable[Row]
) -> Iterator[Row]:
    """Rows with what was found in their images, in order.

    A thread takes several rows: handing over each alone costs as much as decoding a small picture.
    """
    at_once = max(1, IN_FLIGHT // 2 // threads)
    images = StoredImages(sources)

    def check(some: list[Row]) -> list[Row]:
        return [_check(row, images, settings) for row in some]

    with ThreadPoolExecutor(threads) as pool:
        try:
            for some in in_order(pool, check, blocks(rows, at_once), IN_FLIGHT // at_once):
                yield from some
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C their results are not needed


def _check_block(
    sources: Sequence[Source], settings: ScanSettings, threads: int, rows: Sequence[Row]
) -> list[Row]:
    """`_check_in_threads` as a task of an engine, on a host that may not see the data."""
    for number in {row.source for row in rows}:
        if os.path.isabs(sources[number].root):  # not the name of a hub dataset
            see_folder(Path(sources[number].root))
    return [*_check_in_threads(sources, settings, threads, rows)]


def _check(row: Row, images: StoredImages, settings: ScanSettings) -> Row:
    """Hash and decode the image of one row; what is wrong with it becomes the row's problem."""
    try:
        if not row.problem:
            data = images.read(row, most=settings.max_bytes + 1)
            if len(data) <= settings.max_bytes:  # else only a part was read
                row.sha256 = hashlib.sha256(data).hexdigest()
            _, info = decode(data, settings)
            row.width, row.height, row.format = info.width, info.height, info.format
    except ImageProblem as problem:
        row.problem, row.detail = problem.reason, problem.detail
    except FileNotFoundError:
        row.problem, row.detail = "missing-file", row.path
    except (NotAFileError, IsADirectoryError) as error:
        row.problem, row.detail = "not-a-file", error.strerror or str(error)
    except OSError as error:
        row.problem, row.detail = "unreadable", error.strerror or str(error)
    except (CaproError, MemoryError):
        raise
    except Exception as error:  # one row stops no scan
        row.problem, row.detail = "unexpected", described(error)
    row.data = None
    return row


@dataclass
class _Records:
    """Records of a manifest, and what needs the whole source: unique ids, one kind of label, the number of classes."""

    multi_label: bool
    settings: ScanSettings
    unlabelled: bool
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)  # source and split of each id
    names: set[str] = field(default_factory=set)
    cut_texts: int = 0

    def of(self, rows: Iterable[Row], progress: Callable[[int], None]) -> Iterator[dict[str, Any]]:
        """One record for each row; values that are no column of the manifest are not written."""
        for row in rows:
            yield self._record(row)
            progress(1)

    def _record(self, row: Row) -> dict[str, Any]:
        identity = valid_text(row.id)
        if not row.problem:
            row.problem, row.detail = self._problem(row, identity)
        identity = self._unique(identity)
        self.seen[identity] = (row.source, row.split)
        labels = [valid_text(name[: self.settings.max_label]) for name in row.labels]
        return {
            **vars(row),
            "id": identity,
            "split": row.split if row.split in SPLITS else None,
            "path": valid_text(row.path),
            **{name: self._text(getattr(row, name)) for name in ("title", "description", "tags")},
            **({"labels": labels} if self.multi_label else {"label": next(iter(labels), None)}),
            "status": "quarantined" if row.problem else "ok",
            "reason": row.problem,
            "detail": (valid_text(row.detail[:500]) or None) if row.problem else None,
        }

    def _unique(self, identity: str) -> str:
        """An id that no other row has, also for quarantined rows and rows of a second test set."""
        if identity not in self.seen:
            return identity
        numbers = itertools.count(len(self.seen))
        return next(free for number in numbers if (free := f"{identity}#{number}") not in self.seen)

    def _text(self, text: str) -> str:
        if len(text) > self.settings.max_text:
            self.cut_texts += 1
            text = text[: self.settings.max_text]
        return valid_text(text)

    def _problem(self, row: Row, identity: str) -> tuple[str | None, str]:
        if row.split not in SPLITS:
            return "bad-split", row.split
        if row.multi_label != self.multi_label and (row.labels or row.multi_label):
            return "label-kind", str(list(row.labels))
        if not row.labels and not self.multi_label and not (self.unlabelled and row.split == "train"):
            return "no-label", ""
        source, split = self.seen.get(identity, (None, ""))
        second = row.split == split == "test" and source != row.source  # data.test has names of its own
        if source is not None and not second:
            return "duplicate-id", identity
        if any(valid_text(text) != text for text in (row.path, *row.labels)):
            return "bad-name", ascii([row.path, *row.labels])
        longest = max(row.labels, key=len, default="")
        if len(longest) > self.settings.max_label:
            return "long-label", f"{len(longest)} characters: {longest[:80]}"
        new = [name for name in dict.fromkeys(row.labels) if name not in self.names]
        if len(self.names) + len(new) > self.settings.max_classes:
            return "class-limit", new[0]
        self.names.update(new)
        return None, ""
