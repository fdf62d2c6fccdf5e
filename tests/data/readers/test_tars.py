"""Tar shards, whole and damaged."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from capro.data.pixels import ImageStore
from capro.data.readers.tars import _split_name
from capro.errors import DataError
from tests.data.corpus import jpeg
from tests.data.readers.test_tar_members import NEGATIVE, with_size
from tests.data.scanning import reasons, scan_it, write_tar


def sample(key: str, seed: int = 0, **meta: Any) -> list[tuple[str, bytes]]:
    meta = {"caption": f"caption {key}", "label": "cat", "status": "success", **meta}
    return [
        (f"{key}.jpg", jpeg(seed=seed)),
        (f"{key}.txt", str(meta["caption"]).encode()),
        (f"{key}.json", json.dumps(meta).encode()),
    ]


def test_tar_shards_are_read_in_place(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "00001.tar", sample("000000010", 1))
    write_tar(tmp_path / "d" / "00000.tar", sample("000000000", 2) + sample("000000001", 3))
    manifest, summary = scan_it(tmp_path / "d", tmp_path / "out")
    assert manifest.samples["id"].tolist() == [
        "train/00000/000000000",
        "train/00000/000000001",
        "train/00001/000000010",
    ]
    assert ImageStore(manifest).read(2) == jpeg(seed=1)
    assert manifest.samples["title"].tolist()[0] == "caption 000000000"
    assert summary["notes"]["shards"] == 2


def test_a_label_of_our_export_that_looks_like_a_list_is_one_label(tmp_path: Path) -> None:
    members = sample("0", 1, label='["cat"]', capro_id="train/a") + sample(
        "1", 2, label="dog", capro_id="train/b"
    )
    write_tar(tmp_path / "s.tar", members)
    manifest, summary = scan_it(tmp_path / "s.tar", tmp_path / "out")
    assert [list(labels) for labels in manifest.samples["labels"]] == [['["cat"]'], ["dog"]]
    assert not summary["quarantined"]


def test_bad_samples_in_a_shard(tmp_path: Path) -> None:
    members = sample("0") + sample("1", status="failed_to_download", error_message="404")
    members += [("2.txt", b"no image"), ("2.cls", b"cat")]
    members += [("3.jpg", jpeg()), ("3.json", b"{broken")]
    members += [("4.jpg", b"<html>"), ("4.cls", b"cat")]
    members += sample("0")  # the same key again
    members += [("5.jpg", jpeg()), ("5.txt", b"caf\xe9"), ("5.cls", b"dog")]
    write_tar(tmp_path / "s.tar", members)
    manifest, summary = scan_it(tmp_path / "s.tar", tmp_path / "out")
    found = {identity.split("/")[-1]: reason for identity, reason in reasons(manifest).items()}
    assert found == {
        "1": "not-downloaded",
        "2": "no-image",
        "3": "bad-row",
        "4": "not-an-image",
        "0#5": "duplicate-id",
    }
    assert manifest.samples["labels"].tolist() == [("cat",), ("dog",)]
    assert summary["notes"]["replaced"] == 1


@given(cut=st.integers(1, 9_000))
def test_truncated_shard_keeps_whole_members(tmp_path_factory: Any, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    write_tar(folder / "s.tar", [m for key in "abc" for m in sample(key)])
    whole = (folder / "s.tar").read_bytes()
    kept = max(600, len(whole) - 10_240 + 9_000 - cut)
    (folder / "s.tar").write_bytes(whole[:kept])
    try:
        manifest, summary = scan_it(folder / "s.tar", folder / "out")
    except DataError as error:
        assert "none of the" in str(error)  # noqa: PT017 - cut within the first sample
        return
    assert summary["samples"] >= 1
    for position in range(summary["samples"]):
        assert ImageStore(manifest).read(position) == jpeg()
    if summary["samples"] < 3:
        assert summary["notes"]["truncated_shards"] == 1


def test_negative_sizes_in_a_shard_end_and_cost_one_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [m for key in "abc" for m in sample(key)])
    with_size(tmp_path / "s.tar", NEGATIVE, b"b.txt")
    manifest, summary = scan_it(tmp_path / "s.tar", tmp_path / "out")
    assert manifest.samples["id"].tolist() == ["train/s/a", "train/s/c"]
    assert reasons(manifest) == {"train/s/b": "damaged-shard"}
    assert summary["notes"]["damaged_places"] == 1


@pytest.mark.parametrize("member", range(9))
def test_a_damaged_header_costs_its_sample_alone(tmp_path: Path, member: int) -> None:
    write_tar(tmp_path / "s.tar", [m for key in "abc" for m in sample(key)])
    data = bytearray((tmp_path / "s.tar").read_bytes())
    with tarfile.open(tmp_path / "s.tar") as tar:
        at = tar.getmembers()[member].offset
    data[at + 5] ^= 0xFF
    (tmp_path / "s.tar").write_bytes(data)
    manifest, _ = scan_it(tmp_path / "s.tar", tmp_path / "out")
    assert len(manifest.frame) == 3 if member else 4
    assert "abc"[member // 3] not in "".join(manifest.samples["id"].str[-1])
    # behind the first sample nothing shows yet what a whole one has
    assert len(manifest.samples) == (1 if member == 3 else 2)


@pytest.mark.parametrize("kept", ["within the json", "between members", "within a header"])
def test_a_cut_sample_is_called_truncated_not_kept_without_its_json(tmp_path: Path, kept: str) -> None:
    write_tar(tmp_path / "s.tar", [m for key in "abc" for m in sample(key)])
    with tarfile.open(tmp_path / "s.tar") as tar:
        last = tar.getmembers()[-1]
    cut = {"within the json": last.offset_data + 5, "between members": last.offset}.get(
        kept, last.offset + 100
    )
    (tmp_path / "s.tar").write_bytes((tmp_path / "s.tar").read_bytes()[:cut])
    manifest, summary = scan_it(tmp_path / "s.tar", tmp_path / "out")
    assert reasons(manifest) == {"train/s/c": "truncated-shard"}
    assert summary["notes"]["truncated_shards"] == 1


def test_a_shard_without_its_end_mark_keeps_samples_that_have_everything(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", [m for key in "abc" for m in sample(key)])
    data = (tmp_path / "s.tar").read_bytes()
    (tmp_path / "s.tar").write_bytes(data[: len(data.rstrip(b"\0")) // 512 * 512 + 512])
    _, summary = scan_it(tmp_path / "s.tar", tmp_path / "out")
    assert summary["samples"] == summary["rows"] == 3


def test_shards_that_cannot_be_opened_are_rows(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", sample("0"))
    (tmp_path / "d" / "b.tar").mkdir()
    (tmp_path / "d" / "c.tar").touch()
    os.mkfifo(tmp_path / "d" / "e.tar")
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out")
    assert reasons(manifest) == {
        "train/b": "broken-file",
        "train/c/@0": "truncated-shard",
        "train/e": "broken-file",
    }


def test_sparse_members_are_no_samples(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", sample("0"))
    with tarfile.open(tmp_path / "d" / "b.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("1.jpg")
        info.pax_headers = {"GNU.sparse.map": "0,1,nonsense", "GNU.sparse.size": "9"}
        tar.addfile(info)
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out")
    assert reasons(manifest) == {"train/b/1": "bad-row"}


def test_fields_of_hostile_names_and_depth(tmp_path: Path) -> None:
    deep = {"caption": json.loads("[" * 400 + "]" * 400)}
    members = sample("0") + sample("1", **deep) + sample("2", **{"\ud800 field": 1})
    write_tar(tmp_path / "s.tar", [m for m in members if m[0] != "1.txt"])
    manifest, summary = scan_it(tmp_path / "s.tar", tmp_path / "out")
    assert reasons(manifest) == {"train/s/1": "too-deep"}
    assert "? field" in summary["columns"]["not_read"]


@given(st.lists(st.sampled_from(["a", "b.c", ".", "..", "", "x.tar.gz", ".d"]), min_size=1, max_size=4))
def test_a_members_key_is_that_of_its_path(parts: list[str]) -> None:
    """The quick way gives what pathlib gives."""
    name = "/".join(parts)
    assume(not name.startswith("//"))  # which pathlib knows as a root of its own
    path = PurePosixPath(name)
    stem, _, extension = path.name.partition(".")
    parent = "" if str(path.parent) in (".", "/") else f"{path.parent}/"
    assert _split_name(name) == (parent + stem, extension.lower())
