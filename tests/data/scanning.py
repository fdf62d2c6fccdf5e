"""Scanning a source in a test, with the checks that hold for every scan."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capro.config import DataSettings, ScanSettings
from capro.data.images import REASONS
from capro.data.manifest import ROW_REASONS, Manifest
from capro.data.pixels import ImageStore
from capro.data.scan import scan_sources
from capro.stages.scan import find_sources
from tests.data.corpus import png


def scan_it(source: Path | str, out: Path, **data: Any) -> tuple[Manifest, dict[str, Any]]:
    settings = DataSettings(source=str(source), **data)
    found = find_sources(settings)
    summary = scan_sources(found, out, ScanSettings(workers=2), join_labels=settings.join_labels)
    manifest = Manifest.load(out / "manifest.parquet")
    quarantine = pq.read_table(out / "quarantine.parquet")
    assert summary["samples"] + summary["quarantined"] == summary["rows"] == len(manifest.frame)
    assert quarantine.num_rows == summary["quarantined"]
    assert set(quarantine["reason"].to_pylist()) <= set(REASONS) | set(ROW_REASONS)
    assert manifest.frame["id"].is_unique
    store = ImageStore(manifest)
    assert len(store) == summary["samples"]
    for position, sha in enumerate(manifest.samples["sha256"]):
        assert len(sha) == 64
        assert store.read(position)
    return manifest, summary


def reasons(manifest: Manifest) -> dict[str, str]:
    bad = manifest.frame[manifest.frame["status"] != "ok"]
    return dict(zip(bad["id"], bad["reason"], strict=True))


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def write_parquet(path: Path, count: int, *, start: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(i), "path": f"{i}.png"} for i in range(start, start + count)]
    table = pa.table({"image": images, "caption": [f"c{i}" for i in range(count)], "label": ["cat"] * count})
    pq.write_table(table, path, row_group_size=2)
