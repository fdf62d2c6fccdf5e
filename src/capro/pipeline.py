"""One function per stage: load, call, save. Read this first.

Each function takes a ``Run``, does its work through ``Run.stage`` (so that it is skipped when it is
fresh), and leaves its artefacts in the run directory. Stages meet only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capro import progress
from capro.config import DataSettings
from capro.data import readers as data_readers
from capro.data.manifest import Manifest
from capro.data.readers import Reader
from capro.data.scan import scan as scan_rows
from capro.errors import DataError
from capro.runs import Run, fingerprint, read_json


def scan(run: Run, *, bar: progress.Bar = progress.silent, force: bool = False) -> dict[str, Any]:
    """Build the manifest from the source; returns the summary."""
    settings = run.settings
    sources = find_sources(settings.data)

    def work(folder: Path) -> None:
        counts = [reader.count() for reader in sources]
        total = None if None in counts else sum(count or 0 for count in counts)
        with bar("reading images", total) as step:
            scan_rows(sources, folder, settings.scan, progress=step)

    decides = {
        "data": settings.data.model_dump(exclude={"classes"}),
        "scan": settings.scan.model_dump(exclude={"workers"}),
        "listing": listing_fingerprint(sources),
    }
    run.stage("scan", work, settings=decides, force=force)
    return dict(read_json(run.folder("scan") / "summary.json"))


def find_sources(settings: DataSettings) -> list[Reader]:
    """The readers of the source, and of the test source."""
    if settings.source is None:
        raise DataError("no data source", hint="give one: `capro run --data PATH`, or data.source")
    found = list(data_readers.find(settings, source=settings.source))
    if settings.test is not None:
        found += data_readers.find(settings, source=settings.test, split="test")
    return found


def listing_fingerprint(sources: Sequence[Reader]) -> str:
    """A hash over names, sizes and times of the source's files: a changed source is scanned again."""
    listing = []
    for reader in sources:
        root = Path(reader.source.root)
        if reader.source.kind == "hub":
            listing.append(["hub", reader.source.root])
            continue
        named = getattr(reader, "files", None) or getattr(reader, "shards", None)
        for path in sorted(named or root.rglob("*")):
            if path.is_file():
                stat = path.stat()
                listing.append([str(path), stat.st_size, stat.st_mtime_ns])
    return fingerprint(listing)


def manifest_of(run: Run) -> Manifest:
    """The manifest of a run that has been scanned."""
    run.need("scan")
    return Manifest.load(run.folder("scan") / "manifest.parquet")
