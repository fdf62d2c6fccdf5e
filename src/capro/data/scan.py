"""Scan: from readers to a manifest in which every row of the source is accounted for."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capro.config import ScanSettings
from capro.data.images import REASONS, ImageProblem, decode
from capro.data.manifest import ROW_REASONS, SPLITS, Manifest, Row, Source, Task, write_manifest
from capro.data.readers import Reader
from capro.errors import DataError
from capro.runs import atomic_path, write_json

IN_FLIGHT = 128  # rows being decoded at once: bounds memory whatever the source's size
SHOWN = 10  # examples kept in the summary


def scan(
    readers: Sequence[Reader],
    folder: Path,
    settings: ScanSettings,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Read every row, check every image, write manifest, quarantine and summary.

    Args:
        readers: Sources, in the order of the manifest.
        folder: Where ``manifest.parquet``, ``quarantine.parquet`` and ``summary.json`` go.
        settings: Limits of images.
        progress: Told the number of rows done in each step.

    Returns:
        The summary, as data.
    """
    path = folder / "manifest.parquet"
    sources = [reader.source for reader in readers]
    with ThreadPoolExecutor(settings.workers or os.cpu_count() or 1) as pool:
        task, rows = _peek(readers)
        checked = _check_all(rows, sources, pool, settings)
        records = _record_all(checked, task, progress)
        write_manifest(path, records, task=task, sources=sources)
    manifest = Manifest.load(path)
    bad = manifest.table.filter(pc.field("status") != "ok")
    with atomic_path(folder / "quarantine.parquet") as temporary:
        pq.write_table(bad, temporary)
    summary = summarise(manifest, notes=[reader.notes for reader in readers])
    if not summary["samples"]:
        reasons = ", ".join(f"{name} ({n})" for name, n in summary["quarantined_by"].items())
        raise DataError(
            f"none of the {summary['rows']} rows can be used: {reasons or 'the source is empty'}",
            hint=f"{folder / 'quarantine.parquet'} says why for each row",
        )
    write_json(folder / "summary.json", summary)
    return summary


def _peek(readers: Sequence[Reader]) -> tuple[Task, Iterator[tuple[int, Row]]]:
    """The task by the first labelled row, and all rows with the number of their source."""
    rows = ((number, row) for number, reader in enumerate(readers) for row in reader.rows())
    ahead: list[tuple[int, Row]] = []
    for item in rows:
        ahead.append(item)
        if item[1].labels or item[1].listed:
            return ("multi" if item[1].listed else "single"), itertools.chain(ahead, rows)
    return "single", iter(ahead)


Checked = tuple[int, Row, dict[str, Any]]


def _check_all(
    rows: Iterable[tuple[int, Row]],
    sources: Sequence[Source],
    pool: ThreadPoolExecutor,
    settings: ScanSettings,
) -> Iterator[Checked]:
    """Rows with what their image says, in order."""
    waiting: deque[Future[Checked]] = deque()
    try:
        for number, row in rows:
            waiting.append(pool.submit(_check, number, row, sources[number], settings))
            if len(waiting) >= IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:  # after Ctrl-C nobody waits for these
            future.cancel()


def _check(number: int, row: Row, source: Source, settings: ScanSettings) -> Checked:
    """Hash and decode one image; what is wrong with it becomes status and reason."""
    found: dict[str, Any] = {"status": "ok", "reason": None, "detail": None}
    if row.problem:
        return number, row, _problem(found, row.problem, row.detail)
    try:
        data = row_bytes(row, source)
    except FileNotFoundError:
        return number, row, _problem(found, "missing-file", row.path[:500])
    except OSError as error:
        return number, row, _problem(found, "unreadable", error.strerror or str(error))
    found["sha256"] = hashlib.sha256(data).hexdigest()
    try:
        _, info = decode(data, max_pixels=settings.max_pixels, max_aspect=settings.max_aspect)
    except ImageProblem as problem:
        return number, row, _problem(found, problem.reason, problem.detail)
    found |= {"width": info.width, "height": info.height, "format": info.format}
    return number, row, found


def _problem(found: dict[str, Any], reason: str, detail: str) -> dict[str, Any]:
    return found | {"status": "quarantined", "reason": reason, "detail": detail or None}


def row_bytes(row: Row, source: Source) -> bytes:
    """The encoded image of a row that has no problem."""
    if row.data is not None:
        return row.data
    path = Path(source.root) / row.path
    if row.offset is None:
        return path.read_bytes()
    with path.open("rb") as file:
        return os.pread(file.fileno(), row.size or 0, row.offset)


def _record_all(
    checked: Iterable[Checked], task: Task, progress: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """Manifest records; what only the whole source can tell (ids, kinds of label) is checked here."""
    seen: set[str] = set()
    for number, row, image in checked:
        identity = row.id
        reason, detail = _row_problem(row, task, seen) if image["status"] == "ok" else (None, "")
        found = _problem(image, reason, detail) if reason else image
        if identity in seen:  # quarantined rows too have an id of their own
            identity = f"{identity}#{len(seen)}"
        seen.add(identity)
        label: Any = row.labels[0] if task == "single" and row.labels else None
        yield {
            "id": _utf8(identity),
            "split": row.split if row.split in SPLITS else None,
            "source": number,
            "path": _utf8(row.path),
            "offset": row.offset,
            "size": row.size,
            "row": row.row,
            "title": _utf8(row.title),
            "description": _utf8(row.description),
            "tags": _utf8(row.tags),
            **({"label": label and _utf8(label)} if task == "single" else {}),
            **({"labels": [_utf8(name) for name in row.labels]} if task == "multi" else {}),
            **found,
        }
        progress(1)


def _row_problem(row: Row, task: Task, seen: set[str]) -> tuple[str | None, str]:
    if row.split not in SPLITS:
        return "bad-split", row.split[:500]
    if row.listed != (task == "multi") and (row.labels or row.listed):
        return "label-kind", str(list(row.labels))[:500]
    if not row.labels and task == "single":
        return "no-label", ""
    if row.id in seen:
        return "duplicate-id", row.id[:500]
    return None, ""


def _utf8(text: str) -> str:
    """Text that Parquet can hold: lone surrogates become replacement characters."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- summary --------------------------------------------------------------------------------------


def summarise(manifest: Manifest, *, notes: Sequence[dict[str, int]] = ()) -> dict[str, Any]:
    """What is in a manifest, as plain data: counts, classes, texts, quarantine, duplicates."""
    frame, samples = manifest.frame, manifest.samples
    total = Counter[str]()
    for note in notes:
        total.update(note)
    text = samples["title"] + samples["description"] + samples["tags"]
    empty = text.str.strip().str.len() == 0
    reasons = frame.loc[frame["status"] != "ok", "reason"].value_counts()
    return {
        "task": manifest.task,
        "rows": len(frame),
        "samples": len(samples),
        "quarantined": int((frame["status"] != "ok").sum()),
        "splits": {str(k): int(v) for k, v in samples["split"].value_counts().items()},
        "classes": _per_class(samples),
        "unlabelled": int(sum(not labels for labels in samples["labels"])),
        "without_text": {
            str(split): int(count) for split, count in empty.groupby(samples["split"]).sum().items()
        },
        "quarantined_by": {str(reason): int(count) for reason, count in reasons.items()},
        "duplicates": _duplicates(samples),
        "notes": dict(total),
    }


def explain(reason: str) -> str:
    """A quarantine reason in words."""
    return REASONS.get(reason) or ROW_REASONS.get(reason) or reason


def _per_class(samples: pd.DataFrame) -> dict[str, dict[str, int]]:
    counts = Counter(
        (name, split)
        for split, labels in zip(samples["split"], samples["labels"], strict=True)
        for name in labels
    )
    table: dict[str, dict[str, int]] = {}
    for (name, split), count in sorted(counts.items()):
        table.setdefault(name, {})[split] = count
    return table


def _duplicates(samples: pd.DataFrame) -> dict[str, Any]:
    """Equal images by hash: extra copies in training, and images that are in train and test."""
    train = samples[samples["split"] == "train"]
    held = samples[samples["split"].isin(["val", "test"])]
    copies = train["sha256"].duplicated(keep="first")
    first = train.drop_duplicates("sha256").set_index("sha256")
    leaked = held[held["sha256"].isin(first.index)]
    groups = train[train["sha256"].duplicated(keep=False)].groupby("sha256")["labels"]
    conflicting = int(np.sum([labels.nunique() > 1 for _, labels in groups])) if len(groups) else 0
    examples = [
        [str(first.loc[sha, "id"]), str(identity)]
        for sha, identity in leaked[["sha256", "id"]].head(SHOWN).itertuples(index=False)
    ]
    return {
        "copies_in_train": int(copies.sum()),
        "groups_with_different_labels": conflicting,
        "held_out_also_in_train": len(leaked),
        "examples": examples,
    }
