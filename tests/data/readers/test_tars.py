"""Tar shards, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capro.data.image_bytes import ImageStore
from capro.errors import DataError
from tests.data.corpus import jpeg
from tests.data.scanning import reasons, scan_it, write_tar


def sample(key: str, seed: int = 0, **meta: Any) -> list[tuple[str, bytes]]:
    meta = {"caption": f"caption {key}", "label": "cat", "status": "success", **meta}
    return [
        (f"{key}.jpg", jpeg(seed=seed)),
        (f"{key}.txt", meta["caption"].encode()),
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
