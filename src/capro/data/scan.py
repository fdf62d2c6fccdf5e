"""Scan: from readers to a manifest in which every row of the source is accounted for."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capro.config import ScanSettings
from capro.data.image_bytes import REQUESTS, row_bytes
from capro.data.images import ImageProblem, decode
from capro.data.labels import joined_names
from capro.data.manifest import SPLITS, Manifest, Row, Source, Task, blocks, write_manifest
from capro.data.readers.base import Reader
from capro.data.readers.columns import valid_text
from capro.data.summary import summarise
from capro.errors import CaproError, DataError, described
from capro.files import NotAFileError
from capro.pipeline.artefacts import MANIFEST, QUARANTINE, SUMMARY, atomic_path, write_json
from capro.pipeline.engine import THIS_PROCESS, Engine
from capro.pipeline.shards import see_folder
from capro.stores import is_address

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
    with ThreadPoolExecutor(threads) as pool:
        task, rows = _without_labels(readers) if unlabelled else _peek(readers)
        if engine.remote:
            checked = _check_elsewhere(rows, sources, engine, settings, threads)
        else:
            checked = _check_all(rows, sources, pool, settings, threads)
        ledger = _Ledger(task, settings, unlabelled)
        write_manifest(path, ledger.records(checked, progress), task=task, sources=sources)
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
        notes=[*(reader.notes for reader in readers), {"cut_texts": ledger.cut_texts}],
        intakes=[reader.intake() for reader in readers],
        joined=joined,
    )
    if not summary["samples"]:
        reasons = ", ".join(f"{name} ({n})" for name, n in summary["quarantined_by"].items())
        raise DataError(
            f"none of the {summary['rows']} rows can be used: {reasons or 'the source is empty'}",
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
    """The table with other labels; of several labels that became one, one stays."""
    single = manifest.task == "single"
    column = "label" if single else "labels"
    cells = manifest.table[column].to_pylist()
    if single:
        cells = [names.get(name, name) for name in cells]
    else:
        cells = [labels and [*dict.fromkeys(names.get(name, name) for name in labels)] for labels in cells]
    place = manifest.table.schema.get_field_index(column)
    kind = manifest.table.schema.field(place)
    return manifest.table.set_column(place, kind, pa.array(cells, type=kind.type))


def _peek(readers: Sequence[Reader]) -> tuple[Task, Iterator[tuple[int, Row]]]:
    """The task by most of the first labelled rows, and all rows with the number of their source."""
    rows = ((number, row) for number, reader in enumerate(readers) for row in reader.rows())
    ahead: list[tuple[int, Row]] = []
    lists = Counter[bool]()
    for number, row in rows:
        again = row.offset is not None and len(ahead) > LABELS_AHEAD  # of a source without labels: all rows
        ahead.append((number, replace(row, data=None) if again else row))
        if not row.problem and (row.labels or row.listed):
            lists[row.listed] += 1
            if lists.total() == LABELS_AHEAD:
                break
    several = any(listed for listed, _ in lists.most_common(1))  # of as many of both the first
    return ("multi" if several else "single"), itertools.chain(ahead, rows)


def _without_labels(readers: Sequence[Reader]) -> tuple[Task, Iterator[tuple[int, Row]]]:
    """Rows of which only those to test on have a label, one each."""
    rows = ((number, row) for number, reader in enumerate(readers) for row in reader.rows())
    return "single", (
        (number, replace(row, labels=(), listed=False) if row.split == "train" else row)
        for number, row in rows
    )


Checked = tuple[int, Row, dict[str, Any]]


def _check_all(
    rows: Iterable[tuple[int, Row]],
    sources: Sequence[Source],
    pool: ThreadPoolExecutor,
    settings: ScanSettings,
    threads: int,
) -> Iterator[Checked]:
    """Rows with what was found in their images, in order.

    A thread takes several rows: handing over each alone costs as much as decoding a small picture.
    """
    at_once = max(1, IN_FLIGHT // 2 // threads)

    def check(some: Sequence[tuple[int, Row]]) -> list[Checked]:
        return [_check(number, row, sources[number], settings) for number, row in some]

    waiting: deque[Future[list[Checked]]] = deque()
    try:
        for some in blocks(rows, at_once):
            waiting.append(pool.submit(check, some))
            if len(waiting) * at_once >= IN_FLIGHT:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        for future in waiting:  # after Ctrl-C their results are not needed
            future.cancel()


def _check_elsewhere(
    rows: Iterable[tuple[int, Row]],
    sources: Sequence[Source],
    engine: Engine,
    settings: ScanSettings,
    threads: int,
) -> Iterator[Checked]:
    """As `_check_all`, by the tasks of an engine."""
    sent: deque[list[tuple[int, Row]]] = deque()

    def taken() -> Iterator[list[tuple[int, Row]]]:
        for block in blocks(rows, BLOCK):
            sent.append(block)
            yield block

    for found in engine.map(partial(_check_block, sources, settings, threads), taken()):
        for (number, row), image in zip(sent.popleft(), found, strict=True):
            yield number, row, image


def _check_block(
    sources: Sequence[Source], settings: ScanSettings, threads: int, rows: Sequence[tuple[int, Row]]
) -> list[dict[str, Any]]:
    """What was found in the images of some rows, on a host that may not see the data."""
    for number in {number for number, _ in rows}:
        if os.path.isabs(sources[number].root):  # not the name of a hub data set
            see_folder(Path(sources[number].root))
    with ThreadPoolExecutor(threads) as pool:
        return [found for _, _, found in _check_all(rows, sources, pool, settings, threads)]


def _check(number: int, row: Row, source: Source, settings: ScanSettings) -> Checked:
    """Hash and decode one image; what is wrong with it becomes status and reason."""
    found: dict[str, Any] = {"status": "ok", "reason": None, "detail": None}
    try:
        if row.problem:
            raise ImageProblem(row.problem, row.detail)
        data = row_bytes(row, source, most=settings.max_bytes + 1)
        if len(data) <= settings.max_bytes:  # else only a part was read
            found["sha256"] = hashlib.sha256(data).hexdigest()
        _, info = decode(data, settings)
        found |= asdict(info)
    except ImageProblem as problem:
        found = _problem(found, problem.reason, problem.detail)
    except FileNotFoundError:
        found = _problem(found, "missing-file", row.path)
    except (NotAFileError, IsADirectoryError) as error:
        found = _problem(found, "not-a-file", error.strerror or str(error))
    except OSError as error:
        found = _problem(found, "unreadable", error.strerror or str(error))
    except (CaproError, MemoryError):
        raise
    except Exception as error:  # one row stops no scan
        found = _problem(found, "unexpected", described(error))
    return number, row, found


def _problem(found: dict[str, Any], reason: str, detail: str) -> dict[str, Any]:
    return found | {"status": "quarantined", "reason": reason, "detail": valid_text(detail[:500]) or None}


@dataclass
class _Ledger:
    """What needs the whole source: unique ids, one kind of label, the number of classes."""

    task: Task
    settings: ScanSettings
    unlabelled: bool
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)  # source and split of each id
    names: set[str] = field(default_factory=set)
    cut_texts: int = 0

    def records(
        self, checked: Iterable[Checked], progress: Callable[[int], None]
    ) -> Iterator[dict[str, Any]]:
        """Manifest records, one for each row."""
        for number, row, image in checked:
            yield self._record(number, row, image)
            progress(1)

    def _record(self, number: int, row: Row, image: dict[str, Any]) -> dict[str, Any]:
        identity = valid_text(row.id)
        reason, detail = self._problem(row, identity, number) if image["status"] == "ok" else (None, "")
        found = _problem(image, reason, detail) if reason else image
        identity = self._unique(identity)
        self.seen[identity] = (number, row.split)
        limit = self.settings.max_label
        labels = [valid_text(name[:limit]) for name in row.labels]
        return {
            "id": identity,
            "split": row.split if row.split in SPLITS else None,
            "source": number,
            **{name: getattr(row, name) for name in ("offset", "size", "row")},
            "path": valid_text(row.path),
            **{name: self._text(getattr(row, name)) for name in ("title", "description", "tags")},
            **({"label": next(iter(labels), None)} if self.task == "single" else {"labels": labels}),
            **found,
        }

    def _unique(self, identity: str) -> str:
        """Quarantined rows, and rows of a second test set, too have an id of their own."""
        if identity not in self.seen:
            return identity
        numbers = itertools.count(len(self.seen))
        return next(found for number in numbers if (found := f"{identity}#{number}") not in self.seen)

    def _text(self, text: str) -> str:
        if len(text) > self.settings.max_text:
            self.cut_texts += 1
            text = text[: self.settings.max_text]
        return valid_text(text)

    def _problem(self, row: Row, identity: str, number: int) -> tuple[str | None, str]:
        if row.split not in SPLITS:
            return "bad-split", row.split
        if row.listed != (self.task == "multi") and (row.labels or row.listed):
            return "label-kind", str(list(row.labels))
        if not row.labels and self.task == "single" and not (self.unlabelled and row.split == "train"):
            return "no-label", ""
        source, split = self.seen.get(identity, (None, ""))
        second = row.split == split == "test" and source != number  # data.test has names of its own
        if source is not None and not second:
            return "duplicate-id", identity
        if any(valid_text(text) != text for text in (row.path, *row.labels)):
            return "bad-name", ascii([row.path, *row.labels])
        return self._label_problem(row)

    def _label_problem(self, row: Row) -> tuple[str | None, str]:
        longest = max(row.labels, key=len, default="")
        if len(longest) > self.settings.max_label:
            return "long-label", f"{len(longest)} characters: {longest[:80]}"
        new = [name for name in dict.fromkeys(row.labels) if name not in self.names]
        if len(self.names) + len(new) > self.settings.max_classes:
            return "class-limit", new[0]
        self.names.update(new)
        return None, ""
