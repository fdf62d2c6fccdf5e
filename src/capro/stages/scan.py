"""From the source to a manifest in which every row is accounted for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from functools import cached_property
from typing import Any

from capro.config import DataSettings, ScanSettings
from capro.data.manifest import Manifest
from capro.data.readers import find
from capro.data.readers.base import Reader
from capro.data.scan import scan_sources
from capro.data.summary import scan_problems
from capro.errors import DataError
from capro.pipeline.artefacts import MANIFEST, PUBLISHED_CLASSES, SUMMARY
from capro.pipeline.checksums import fingerprint
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.stores import state_of


def find_sources(settings: DataSettings) -> list[Reader]:
    """The readers of the source, and of the test source."""
    if settings.source is None:
        raise DataError("no data source", hint="give one: `capro run --data PATH`, or data.source")
    readers = find(settings, source=settings.source)
    if settings.test is not None:
        readers += find(settings, source=settings.test, split="test")
    return readers


class Sources:
    """The readers of a stage's sources, and the state of their files."""

    def __init__(self, readers: list[Reader]) -> None:
        self.readers = readers

    @staticmethod
    def of_run(run: Run) -> Sources:
        """The sources that a run's settings name; one that lacks a column that is needed is refused."""
        return Sources(find_sources(run.settings.data))

    @cached_property
    def fingerprint(self) -> str:
        """A hash over names, sizes and times of the files: a changed source is scanned again."""
        listing: list[list[Any]] = []
        for reader in self.readers:
            listing.append([reader.source.kind, reader.source.root])
            files: list[Any] = [*reader.listing()]  # all of one kind: they can be sorted
            for path in sorted(files):
                if path.is_file():
                    listing.append([str(path), *state_of(path)])
        return fingerprint(listing)


def scan_into(job: Job, *, classes: Collection[str] = ()) -> list[Reader]:
    """Read the sources of a scan into its folder, returns their readers; joined labels are named as the classes are."""
    sources: list[Reader] = job.causes.sources.readers
    counts = [reader.count() for reader in sources]
    total = None if None in counts else sum(count or 0 for count in counts)
    with job.bar("reading images", total) as step:
        data = job.settings.data
        scan_sources(
            sources, job.folder, job.settings.scan, unlabelled=data.unlabelled,
            join_labels=data.join_labels, classes=classes, progress=step, engine=job.engine,
        )  # fmt: skip
    return sources


def reading_settings(settings: DataSettings, *, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """The settings of the data that decide what a scan reads."""
    return settings.model_dump(exclude={"classes", "ambiguous_list", "without_texts", *leave_out})


def limit_settings(settings: ScanSettings) -> dict[str, Any]:
    """The limits that decide a scan."""
    return settings.model_dump(exclude={"workers"})


def settings(run: Run) -> dict[str, Any]:
    """What decides a scan."""
    return {"data": reading_settings(run.settings.data), "scan": limit_settings(run.settings.scan)}


def work(job: Job) -> dict[str, str]:
    sources = scan_into(job)
    brought = next((hints for reader in sources if (hints := reader.classes())), [])
    job.write(PUBLISHED_CLASSES, [asdict(hint) for hint in brought])
    content = Manifest.load(job.file(MANIFEST)).content
    return {"content": fingerprint([content, [asdict(hint) for hint in brought]])}


def check(run: Run) -> list[str]:
    return scan_problems(run.read(SUMMARY), without_texts=run.settings.data.without_texts)
