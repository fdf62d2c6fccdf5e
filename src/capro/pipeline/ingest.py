"""Stages from the source to pixels and features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro import assemble, progress
from capro.assemble import classes_of, manifest_of
from capro.config import DataSettings
from capro.data import readers as data_readers
from capro.data.manifest import Manifest
from capro.data.pixels import decoded_bytes
from capro.data.readers import Reader
from capro.data.readers.nuswide import NusWideReader
from capro.data.readers.webvision import WebVisionReader
from capro.data.scan import scan as scan_rows
from capro.data.views import KEY, QUERY
from capro.errors import DataError
from capro.pipeline.base import stage
from capro.runs import Run, fingerprint, read_array, read_json, write_json
from capro.shards import ALONE, Shards, Team, chosen_rows, planned, sharded, write_rows
from capro.text import classes as class_texts
from capro.text.cleaning import clean_text, combine
from capro.text.encoders import load_text_encoder
from capro.train.batches import PLAIN, ImageInputs, Inputs

SHOWN = 5  # names in a warning
EAGER = 0.8  # below it the rule per class adds labels that it half believes
CPU_BATCH = 16  # stays in the cache: EfficientNet-Lite0 runs 2.3 times as fast as with 64

# --- data -----------------------------------------------------------------------------------------


def scan(run: Run, *, bar: progress.Bar = progress.silent, force: bool = False) -> dict[str, Any]:
    """Build the manifest from the source; returns the summary."""
    settings = run.settings
    sources = find_sources(settings.data)

    def work(folder: Path) -> dict[str, str]:
        counts = [reader.count() for reader in sources]
        total = None if None in counts else sum(count or 0 for count in counts)
        with bar("reading images", total) as step:
            scan_rows(sources, folder, settings.scan, progress=step)
        brought = published_classes(sources)
        write_json(folder / "classes.json", brought)
        content = Manifest.load(folder / "manifest.parquet").content
        return {"content": fingerprint([content, brought])}

    decides = {
        "data": settings.data.model_dump(exclude={"classes"}),
        "scan": settings.scan.model_dump(exclude={"workers"}),
        "listing": listing_fingerprint(sources),
    }
    stage(run, "scan", work, settings=decides, force=force)
    return dict(read_json(run.folder("scan") / "summary.json"))


def published_classes(sources: Sequence[Reader]) -> list[dict[str, Any]]:
    """The classes that a published data set brings with it; empty for any other source."""
    for reader in sources:
        if isinstance(reader, WebVisionReader | NusWideReader):
            return [asdict(hint) for hint in reader.classes()]
    return []


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
    listing: list[list[Any]] = []
    for reader in sources:
        if reader.source.kind == "hub":
            listing.append(["hub", reader.source.root])
            continue
        named = getattr(reader, "files", None) or getattr(reader, "shards", None)
        for path in sorted(named or Path(reader.source.root).rglob("*")):
            if path.is_file():
                stat = path.stat()
                listing.append([str(path), stat.st_size, stat.st_mtime_ns])
    return fingerprint(listing)


def classes(
    run: Run, *, bar: progress.Bar = progress.silent, warn: Callable[[str], None] = lambda _: None
) -> list[class_texts.ClassSpec]:
    """The classes with senses or definitions: from data.classes, the source, else suggested."""
    settings = run.settings
    manifest = manifest_of(run)
    given = Path(settings.data.classes) if settings.data.classes else None
    brought = run.folder("scan") / "classes.json"
    known = read_json(brought) if given is None and brought.exists() else []

    def work(folder: Path) -> None:
        if given is not None:
            specs = class_texts.load_classes(given)
        elif known:
            specs = [class_texts.ClassSpec(**hint) for hint in known]
            class_texts.save_classes(folder / "classes.yaml", specs)
        else:
            suggestions = suggest(run, bar=bar)
            specs = [class_texts.draft(suggestion) for suggestion in suggestions]
            class_texts.save_classes(folder / "classes.yaml", specs, suggestions=suggestions)
        write_json(folder / "classes.json", [asdict(spec) for spec in specs])

    decides = {
        "classes": [asdict(spec) for spec in class_texts.load_classes(given)] if given else None,
        "encoder": None
        if given or known
        else [settings.embed.text_encoder, settings.embed.max_tokens],
    }
    stage(run, "classes", work, settings=decides, inputs=["scan"])
    specs = classes_of(run)
    names = [spec.name for spec in specs]
    assemble.encode_labels(manifest, manifest.split("train"), names)  # refuses unknown labels
    empty = sorted(set(names) - set(manifest.label_names("train")))
    if empty:
        warn(f"{len(empty)} classes have no training sample: {', '.join(empty[:SHOWN])}")
    if manifest.task == "multi" and settings.train.gamma < EAGER:
        warn(
            f"samples carry several labels, and train.gamma {settings.train.gamma} changes them eagerly: "
            "the paper has 0.9 here (--set train.gamma=0.9; --preset small-multi for frozen features)"
        )
    if given is None and not known:
        unsure = [spec.name for spec in specs if spec.ambiguous or not spec.sense]
        draft = run.folder("classes") / "classes.yaml"
        warn(
            f"senses were chosen by the texts; {len(unsure)} of {len(specs)} deserve a look "
            f"({', '.join(unsure[:SHOWN])}): edit a copy of {draft}, then --set data.classes=COPY"
        )
    return specs


def suggest(run: Run, *, bar: progress.Bar = progress.silent) -> list[class_texts.Suggestion]:
    """All noun senses of every label in the manifest, ranked by the class's own texts."""
    settings = run.settings
    manifest = manifest_of(run)
    texts: dict[str, list[str]] = {name: [] for name in manifest.label_names("train")}
    for text, labels in zip(clean_texts(manifest), _train_labels(manifest), strict=True):
        for label in labels:
            texts[label].append(text)
    encoder = load_text_encoder(settings.embed.text_encoder, max_tokens=settings.embed.max_tokens)
    with bar("ranking senses", None) as step:
        return class_texts.suggest(texts, lambda batch: encoder.encode(batch, progress=step))


def _train_labels(manifest: Manifest) -> list[tuple[str, ...]]:
    return list(manifest.samples["labels"].iloc[manifest.split("train")])


def clean_texts(manifest: Manifest) -> list[str]:
    """Cleaned text of every training sample, in order."""
    samples = manifest.samples.iloc[manifest.split("train")]
    columns = [samples[name] for name in ("title", "description", "tags")]
    return [clean_text(combine(*row)) for row in zip(*columns, strict=True)]


# --- pixels and features --------------------------------------------------------------------------


def pixels(run: Run, *, bar: progress.Bar = progress.silent) -> None:
    """Decode a small data set once into a memory map; a large one is decoded as it is needed."""
    settings, manifest = run.settings, manifest_of(run)
    size = settings.views.size or assemble.pretrained(settings).size

    def work(folder: Path) -> dict[str, Any]:
        (folder / "index.npy").unlink(missing_ok=True)
        needed = decoded_bytes(manifest)
        if needed > settings.views.cache_gb * 2**30:
            return {"cached": False, "bytes": needed}
        with bar("decoding images", len(manifest.samples)) as step:
            assemble.pixels_of(run, manifest, size).build(folder, progress=step)
        return {"cached": True, "bytes": needed}

    decides = {"size": size, "cache_gb": settings.views.cache_gb}
    stage(run, "pixels", work, settings=decides, inputs=["scan"])


def features(
    run: Run, *, bar: progress.Bar = progress.silent, say: Callable[[str], None] = lambda _: None
) -> None:
    """Frozen mode: features of every image, and of a few augmented views of the training images."""
    settings, manifest = run.settings, manifest_of(run)
    ranks = assemble.ranks_of(settings)
    decides = {
        "net": settings.net.model_dump(include={"backbone", "weights", "frozen_views"}),
        "views": settings.views.model_dump(exclude={"cache_gb"}),
    }

    def work(folder: Path) -> dict[str, Any]:
        backbone = assemble.pretrained(settings).eval()
        size = settings.views.size or backbone.size
        encoder = assemble.encoder_cost(backbone, size)
        say(assemble.cost_line("encoder", encoder))
        # one seed for all runs: the cached views are data, and trainings of any seed share them
        images = ImageInputs(
            assemble.pixels_of(run, manifest, size), backbone, settings.views, seed=0
        )
        train, everyone = manifest.split("train"), np.arange(len(manifest.samples))
        half = max(1, settings.net.frozen_views // 2)
        views = [("plain", PLAIN, 0, everyone)]
        views += [
            ("query", QUERY, epoch, train) for epoch in range(settings.net.frozen_views - half)
        ]
        views += [("key", KEY, epoch, train) for epoch in range(half)]
        shards = {
            (name, epoch): image_shards(
                folder / f"{name}{epoch}", len(rows), run, key=[name, epoch, decides]
            )
            for name, _, epoch, rows in views
        }
        total = sum(part.rows(ranks) for part in shards.values())
        with bar("features of views", total) as step:
            for name, view, epoch, rows in views:
                part = shards[name, epoch]
                embed_images(
                    part, images, backbone, rows, run, view=view, epoch=epoch, step=step, team=ranks
                )
        ranks.meet()
        if not ranks.main:
            return {}
        plain, width = folder / "plain.npy", backbone.dim
        write_rows(plain, (len(everyone), width), shards["plain", 0].blocks())
        parts = {name: [shards[n, e] for n, e in shards if n == name] for name in ("query", "key")}
        blocks = {name: (b for part in of for b in part.blocks()) for name, of in parts.items()}
        unaugmented = chosen_rows(read_array(plain), train)
        query = (1 + len(parts["query"]), len(train), width)
        write_rows(folder / "query.npy", query, chain(unaugmented, blocks["query"]))
        write_rows(folder / "key.npy", (half, len(train), width), blocks["key"])
        for part in shards.values():
            part.drop()
            part.folder.parent.rmdir()
        return {"encoder": encoder}

    stage(run, "features", work, settings=decides, inputs=["scan"], ranks=ranks)


def image_shards(folder: Path, count: int, run: Run, *, key: Any) -> Shards:
    """Where the features of images go, by blocks; ``key`` decides their values."""
    size = run.settings.embed.shard_size
    return planned(folder, count, key=fingerprint([run.need("scan"), key]), size=size)


def embed_images(
    shards: Shards,
    inputs: Inputs,
    encoder: torch.nn.Module,
    rows: NDArray[np.int64],
    run: Run,
    *,
    view: int,
    epoch: int,
    step: progress.Step,
    team: Team = ALONE,
) -> Shards:
    """Features of images, (n, d_v), into this rank's shards; ``step`` hears of its rows."""
    settings = run.settings
    device = assemble.ranks_of(settings).accelerator.device
    encoder = encoder.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    size = settings.embed.batch_size
    if device.type == "cpu":
        size = min(size, CPU_BATCH)

    @torch.no_grad()
    def compute(begin: int, end: int) -> NDArray[np.float32]:
        parts = []
        for at in range(begin, end, size):
            block = rows[at : min(at + size, end)]
            raw = inputs.raw(block, epoch=epoch, view=view)
            x = inputs.ready(raw, block, epoch=epoch, view=view, device=device)
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            parts.append(encoder(x).float().cpu().numpy())
            step(len(block))
        return np.concatenate(parts)

    return sharded(shards, compute, team=team, progress=step)
