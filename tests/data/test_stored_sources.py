"""Sources in an object store: the same rows as on a disk, each byte once, and no sample lost to the network."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from capro.config import DataSettings
from capro.data.manifest import Manifest
from capro.data.pixels import ImageStore
from capro.data.readers import find, find_to_evaluate
from capro.data.scan import LABELS_AHEAD, _peek
from capro.errors import ConfigError, DataError, StoreError
from capro.export.predictor import find_images
from capro.stages.scan import Sources, find_sources
from capro.stores import ObjectPath
from tests.data.corpus import jpeg, png
from tests.data.readers.test_tars import sample
from tests.data.scanning import put, reasons, scan_it, write_parquet, write_tar
from tests.stores import Fault, Flaky, flaky, put_tree

__all__ = ["flaky"]


def shards(folder: Path) -> Path:
    """Two shards: whole and bad samples, a large picture, a shard that ends too early."""
    bad = [("8.jpg", b"<html>"), ("8.cls", b"cat"), ("9.txt", b"no image"), ("9.cls", b"cat")]
    write_tar(folder / "00000.tar", sample("0", 1) + sample("1", 2) + bad)
    write_tar(folder / "00001.tar", sample("2", 3) + sample("3", 4))
    whole = (folder / "00001.tar").read_bytes()
    (folder / "00001.tar").write_bytes(whole[:6000])
    return folder


def tables(folder: Path, kind: str) -> Path:
    for number in range(3):
        put(folder / "images" / f"{number}.png", png(number))
    rows: list[dict[str, str]] = [
        {"image": f"images/{n}.png", "label": "café", "title": f"t{n}"} for n in range(3)
    ]
    rows += [{"image": name, "label": "cat", "title": ""} for name in ("images/no.png", "../x.png", "images")]
    file = folder / f"table.{kind}"
    if kind == "csv":
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def same_scan(local: Path, address: str, tmp_path: Path, **settings: Any) -> Manifest:
    """Scan both, and compare every cell but the place of the source."""
    here, _ = scan_it(local, tmp_path / "here", **settings)
    there, _ = scan_it(address, tmp_path / "there", **settings)
    left, right = (each.table.drop_columns("detail").to_pylist() for each in (here, there))
    assert left == right
    assert all(source.root.startswith("flaky://") for source in there.sources)
    for position in range(len(here.samples)):
        assert ImageStore(here).read(position) == ImageStore(there).read(position)
    return there


def test_shards_give_the_same_rows_as_on_a_disk(flaky: type[Flaky], tmp_path: Path) -> None:
    folder = shards(tmp_path / "d")
    manifest = same_scan(folder, put_tree(folder, "flaky://bucket/shards"), tmp_path)
    assert sorted(reasons(manifest).values()) == ["no-image", "not-an-image", "truncated-shard"]
    one, _ = scan_it("flaky://bucket/shards/00000.tar", tmp_path / "one")
    assert len(one.samples) == 2


@pytest.mark.parametrize("block", [4096, 8 << 20])
def test_a_scan_reads_each_byte_of_a_shard_once(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    for module in ("tars", "tar_members"):
        monkeypatch.setattr(f"capro.data.readers.{module}.REQUEST", block)
    monkeypatch.setattr("capro.data.readers.tar_members.AT_ONCE", 1024)
    write_tar(tmp_path / "s.tar", [m for key in range(20) for m in sample(f"{key}", key)])
    put_tree(tmp_path / "s.tar", "flaky://bucket/s.tar")
    readers = find(DataSettings(), source="flaky://bucket/s.tar")
    rows = [row for reader in readers for row in reader.rows()]
    assert [row.data for row in rows] == [jpeg(seed=key) for key in range(20)]
    length = (tmp_path / "s.tar").stat().st_size
    assert sum(size for _, size in flaky.sent) == length
    assert flaky.requests["cat_file"] == -(-length // block)


def test_a_large_picture_is_a_request_of_its_own(
    flaky: type[Flaky], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capro.data.readers.tars.REQUEST", 1000)
    folder = shards(tmp_path / "d")
    address = put_tree(folder, "flaky://bucket/shards")
    rows = [row for reader in find(DataSettings(), source=address) for row in reader.rows()]
    assert {row.data for row in rows if row.size and row.size > 1000} == {None}
    same_scan(folder, address, tmp_path)


def test_a_source_without_labels_does_not_fill_the_memory(flaky: type[Flaky], tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [(f"{key}.png", png(key)) for key in range(LABELS_AHEAD + 20)])
    put_tree(tmp_path / "s.tar", "flaky://bucket/s.tar")
    (reader,) = find(DataSettings(), source="flaky://bucket/s.tar")
    _, rows = _peek(reader.rows())
    assert [row.data is None for row in rows] == [False] * (LABELS_AHEAD + 1) + [True] * 19


def test_one_picture_is_one_request_of_its_own_bytes(flaky: type[Flaky], tmp_path: Path) -> None:
    folder = shards(tmp_path / "d")
    manifest, _ = scan_it(put_tree(folder, "flaky://bucket/shards"), tmp_path / "out")
    flaky.sent.clear()
    store = ImageStore(manifest)
    assert flaky.sent == []
    assert store.read(1) == jpeg(seed=2)
    assert flaky.sent == [("bucket/shards/00000.tar", len(jpeg(seed=2)))]


def test_a_shard_that_is_gone_is_named(flaky: type[Flaky], tmp_path: Path) -> None:
    manifest, _ = scan_it(put_tree(shards(tmp_path / "d"), "flaky://bucket/shards"), tmp_path / "out")
    ObjectPath("flaky", "bucket/shards/00000.tar").remove()
    with pytest.raises(DataError, match="image of sample train/00000/0 cannot be read: no such object"):
        ImageStore(manifest).read(0)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_names_pictures_below_it(flaky: type[Flaky], tmp_path: Path, kind: str) -> None:
    file = tables(tmp_path / "d", kind)
    put_tree(tmp_path / "d", "flaky://bucket/d")
    manifest = same_scan(file, f"flaky://bucket/d/{file.name}", tmp_path)
    assert [*reasons(manifest).values()] == ["missing-file", "outside-folder", "not-a-file"]
    assert manifest.samples["labels"].tolist() == [("café",)] * 3


def test_the_pictures_of_a_table_may_lie_elsewhere(flaky: type[Flaky], tmp_path: Path) -> None:
    file = tables(tmp_path / "d", "csv")
    put_tree(tmp_path / "d", "flaky://bucket/d")
    (tmp_path / "alone").mkdir()
    moved = file.rename(tmp_path / "alone" / file.name)
    manifest, _ = scan_it(moved, tmp_path / "out", image_root="flaky://bucket/d")
    assert len(manifest.samples) == 3
    with pytest.raises(DataError, match="flaky://bucket/no: no such folder"):
        scan_it(moved, tmp_path / "out", image_root="flaky://bucket/no")


def test_parquet_with_pictures_in_it(flaky: type[Flaky], tmp_path: Path) -> None:
    write_parquet(tmp_path / "d" / "train-00000-of-00002.parquet", 5)
    write_parquet(tmp_path / "d" / "train-00001-of-00002.parquet", 3, start=5)
    write_parquet(tmp_path / "d" / "test-00000-of-00001.parquet", 2, start=8)
    address = put_tree(tmp_path / "d", "flaky://bucket/d")
    manifest = same_scan(tmp_path / "d", address, tmp_path)
    assert len(manifest.split("train")) == 8
    assert len(find_to_evaluate(DataSettings(), address)) == 1


def test_folders_named_after_splits(flaky: type[Flaky], tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "train" / "0.tar", sample("0", 1))
    write_tar(tmp_path / "d" / "test" / "0.tar", sample("1", 2))
    manifest = same_scan(tmp_path / "d", put_tree(tmp_path / "d", "flaky://bucket/d"), tmp_path)
    assert manifest.samples["split"].tolist() == ["train", "test"]


def test_a_changed_object_changes_the_fingerprint(flaky: type[Flaky], tmp_path: Path) -> None:
    address = put_tree(shards(tmp_path / "d"), "flaky://bucket/shards")
    before = Sources(find_sources(DataSettings(source=address))).fingerprint
    assert Sources(find_sources(DataSettings(source=address))).fingerprint == before
    put_tree(tmp_path / "d" / "00001.tar", f"{address}/00001.tar")  # of the same size
    assert Sources(find_sources(DataSettings(source=address))).fingerprint != before


# --- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tars", "csv", "parquet"])
@pytest.mark.parametrize("kind", ["fail", "cut", "deny"])
def test_an_error_of_the_network_loses_no_sample(
    flaky: type[Flaky], tmp_path: Path, layout: str, kind: Any
) -> None:
    if layout == "tars":
        write_tar(tmp_path / "d" / "s.tar", sample("0", 1) + sample("1", 2))
    elif layout == "csv":
        tables(tmp_path / "d", "csv")
    else:
        for number in range(2):  # a further file that cannot be read would be a row
            write_parquet(tmp_path / "d" / f"train-0000{number}-of-00002.parquet", 4, start=4 * number)
    address = put_tree(tmp_path / "d", "flaky://bucket/d")
    address += "/table.csv" if layout == "csv" else ""
    whole, _ = scan_it(address, tmp_path / "whole")
    requests = flaky.requests["cat_file"]
    if kind != "deny":
        flaky.faults.append(Fault("cat_file", kind=kind, times=3, after=1))
        again, _ = scan_it(address, tmp_path / "again")
        assert again.content == whole.content
        flaky.faults.clear()
    for after in range(0, requests // 2, 2):
        flaky.faults[:] = [Fault("cat_file", kind=kind, times=1000, after=after)]
        with pytest.raises(StoreError, match="flaky://bucket/d"):
            scan_it(address, tmp_path / "stopped")
        assert not (tmp_path / "stopped" / "manifest.parquet").exists()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("flaky://bucket/no", "no such file or folder"),
        ("ftp://host/data", "no protocol 'ftp'"),
        ("flaky://bucket/pictures", "no .tar shards"),
    ],
)
def test_what_cannot_be_read_is_refused(flaky: type[Flaky], tmp_path: Path, address: str, says: str) -> None:
    put(tmp_path / "d" / "cat" / "1.png", png())
    put_tree(tmp_path / "d", "flaky://bucket/pictures")
    with pytest.raises((DataError, ConfigError), match=says):
        find(DataSettings(), source=address)


def test_pictures_to_label(flaky: type[Flaky], tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", sample("0", 1))
    put_tree(tmp_path / "s.tar", "flaky://bucket/s.tar")
    put(tmp_path / "1.png", png(1))
    put_tree(tmp_path / "1.png", "flaky://bucket/1.png")
    found = [
        *find_images(
            ["flaky://bucket/s.tar", "flaky://bucket/1.png", "flaky://bucket/no", tmp_path / "1.png"]
        )
    ]
    assert [each.data for each in found] == [jpeg(seed=1), png(1), b"", png(1)]
    assert [each.name for each in found][:2] == ["flaky://bucket/s.tar:train/s/0", "flaky://bucket/1.png"]
    assert found[2].error == "no such file or folder"
