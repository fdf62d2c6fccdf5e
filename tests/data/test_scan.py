"""Readers and scan together: every row of a source is a sample or quarantined with a reason."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.config import DataSettings, ScanSettings
from capro.data import readers
from capro.data.image_bytes import ImageStore
from capro.data.images import REASONS
from capro.data.manifest import ROW_REASONS, Manifest, Source, write_manifest
from capro.data.scan import scan_sources
from capro.data.summary import explain
from capro.errors import DataError
from tests.data.corpus import BAD_IMAGES, jpeg, png


def scan_it(source: Path | str, out: Path, **data: Any) -> tuple[Manifest, dict[str, Any]]:
    found = readers.find(DataSettings(**data), source=str(source))
    summary = scan_sources(found, out, ScanSettings(workers=2))
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


# --- folders --------------------------------------------------------------------------------------


def test_folder_gives_class_by_folder_in_path_order(tmp_path: Path) -> None:
    for seed, name in enumerate(["dog/b.png", "cat/2.jpg", "cat/1.png"]):
        put(tmp_path / "data" / name, png(seed))
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out")
    assert manifest.samples["id"].tolist() == ["train/cat/1.png", "train/cat/2.jpg", "train/dog/b.png"]
    assert manifest.samples["labels"].tolist() == [("cat",), ("cat",), ("dog",)]
    assert (summary["task"], summary["rows"]) == ("single", 3)


def test_every_bad_image_is_quarantined_with_its_reason(tmp_path: Path) -> None:
    put(tmp_path / "data" / "cat" / "good.png", png())
    for number, (data, _) in enumerate(BAD_IMAGES.values()):
        put(tmp_path / "data" / "cat" / f"bad{number:02d}.jpg", data)
    manifest, summary = scan_it(tmp_path / "data", tmp_path / "out")
    expected = {
        f"train/cat/bad{number:02d}.jpg": reason for number, (_, reason) in enumerate(BAD_IMAGES.values())
    }
    assert reasons(manifest) == expected
    assert summary["samples"] == 1


def test_metadata_wins_over_folder_and_unmatched_are_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "a" / "1.png", png(1))
    put(data / "a" / "2.png", png(2))
    text = "file_name,title,label\na/1.png,a red car,Car\na/9.png,gone,Car\n"
    (data / "metadata.csv").write_text(text)
    manifest, summary = scan_it(data, tmp_path / "out")
    assert manifest.samples["labels"].tolist() == [("Car",), ("a",)]
    assert manifest.samples["title"].tolist() == ["a red car", ""]
    assert reasons(manifest) == {"train/a/9.png": "missing-file"}
    notes = summary["notes"]
    assert (notes["metadata_matched"], notes["metadata_unmatched"]) == (1, 1)
    assert notes["files_without_metadata"] == 1
    assert summary["without_text"] == {"train": 1}


HOSTILE_PATHS = {
    "../secret.png": "outside-folder",
    "a/../../secret.png": "outside-folder",
    "/etc/passwd": "outside-folder",
    "C:\\images\\1.png": "outside-folder",
    "C:1.png": "outside-folder",
    "\\\\host\\share\\1.png": "outside-folder",
    "": "outside-folder",
    "link.png": "outside-folder",
    "a/missing.png": "missing-file",
}


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"
    put(data / "a" / "1.png", png())
    put(tmp_path / "secret.png", png(7))
    os.symlink(tmp_path / "secret.png", data / "link.png")
    rows = pd.DataFrame({"file_name": ["a/1.png", *HOSTILE_PATHS], "label": "a"})
    name = "metadata.csv" if kind == "folder" else "table.csv"
    rows.to_csv(data / name, index=False)
    source = data if kind == "folder" else data / name
    manifest, summary = scan_it(source, tmp_path / "out")
    assert manifest.samples["path"].tolist() == ["a/1.png"]
    expected = dict(pd.Series(list(HOSTILE_PATHS.values())).value_counts())
    if kind == "table":  # an empty cell is no path at all
        expected = {**expected, "outside-folder": expected["outside-folder"] - 1, "no-image": 1}
    else:  # the linked file itself was found by walking the folder
        expected = {**expected, "outside-folder": expected["outside-folder"] + 1}
    assert summary["quarantined_by"] == expected


def test_non_utf8_metadata_is_read_and_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "1.png", png())
    put(data / "metadata.csv", b"file_name,title,label\n1.png,caf\xe9 \xff,cat\n")
    manifest, summary = scan_it(data, tmp_path / "out")
    assert "caf\ufffd" in manifest.samples["title"][0]
    assert summary["notes"]["metadata_replaced"] == 1


def test_bad_csv_rows(tmp_path: Path) -> None:
    put(tmp_path / "1.png", png())
    body = b"path,title,label\n1.png,fine,cat\n1.png,t,cat,extra\n1.png\n1.png,t,\n"
    put(tmp_path / "t.csv", body)
    _, summary = scan_it(tmp_path / "t.csv", tmp_path / "out")
    assert summary["quarantined_by"] == {"bad-row": 2, "no-label": 1}


def test_bad_jsonl_rows_huge_and_strange_texts(tmp_path: Path) -> None:
    put(tmp_path / "1.png", png())
    texts = ["x" * 1_000_000, "nul \0 byte", "\u202eright to left", "\ud800", "🐭"]
    lines = [json.dumps({"path": "1.png", "text": text, "label": "cat"}) for text in texts]
    lines += ["{broken", "[1, 2]", '{"path": "1.png", "label": ["cat"]}', '{"label": "cat"}']
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    manifest, summary = scan_it(tmp_path / "t.jsonl", tmp_path / "out")
    assert summary["quarantined_by"] == {"bad-row": 2, "label-kind": 1, "no-image": 1}
    assert [len(text) for text in manifest.samples["title"]] == [1_000_000, 10, 14, 1, 1]


def test_ids_splits_and_duplicates(tmp_path: Path) -> None:
    for seed in (1, 2):
        put(tmp_path / f"{seed}.png", png(seed))
    frame = pd.DataFrame(
        [("x", "1.png", "cat", "train"), ("y", "1.png", "dog", "train"), ("x", "2.png", "cat", "train"),
         ("z", "1.png", "cat", "test"), ("w", "2.png", "cat", "holdout")],
        columns=["key", "path", "label", "part"],
    )  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    manifest, summary = scan_it(tmp_path / "t.csv", tmp_path / "out", id_column="key", split_column="part")
    assert manifest.samples["id"].tolist() == ["x", "y", "z"]
    assert summary["quarantined_by"] == {"duplicate-id": 1, "bad-split": 1}
    found = summary["duplicates"]
    assert (found["copies_in_train"], found["groups_with_different_labels"]) == (1, 1)
    assert found["held_out_also_in_train"] == 1
    assert found["examples"] == [["x", "z"]]


def test_labels_as_list_or_separated_are_multi_label(tmp_path: Path) -> None:
    put(tmp_path / "1.png", png())
    (tmp_path / "t.csv").write_text('path,label\n1.png,"cat, dog,cat"\n1.png,bird\n1.png,\n')
    manifest, _ = scan_it(tmp_path / "t.csv", tmp_path / "out", label_separator=",")
    assert manifest.task == "multi"
    assert manifest.samples["labels"].tolist() == [("cat", "dog"), ("bird",), ()]
    (tmp_path / "u.csv").write_text('path,labels\n1.png,"[""cat"", ""dog""]"\n')
    manifest, _ = scan_it(tmp_path / "u.csv", tmp_path / "out2")
    assert manifest.samples["labels"].tolist() == [("cat", "dog")]


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    for seed, name in enumerate(["train", "bus"]):
        put(tmp_path / "data" / name / "1.png", png(seed))
    manifest, _ = scan_it(tmp_path / "data", tmp_path / "out")
    assert manifest.label_names() == ["bus", "train"]


def test_split_folders(tmp_path: Path) -> None:
    for seed, name in enumerate(["train/cat", "test/cat", "validation/cat"]):
        put(tmp_path / "data" / name / "1.png", png(seed))
    manifest, _ = scan_it(tmp_path / "data", tmp_path / "out")
    assert manifest.samples["split"].tolist() == ["train", "val", "test"]


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda p: p / "nowhere", "no such file or folder", "check the path"),
        (lambda p: _file(p / "x.tar.gz", b""), "not a source", "unpack it once"),
        (lambda p: _file(p / "x.docx", b""), "not a source", "give a folder"),
        (lambda p: _file(p / "x.parquet", b"nonsense"), "not a Parquet file", "whole"),
        (lambda p: _file(p / "x.csv", b"a,b\n1,2\n"), "no column with images", "--image-column"),
        (lambda p: _file(p / "x.csv", b""), "no column with images", "--image-column"),
        (lambda p: _file(p / "d" / "notes.txt", b"hello").parent, "no image in this folder", "give"),
        (lambda p: _file(p / "x.tar", b""), "none of the 1 rows", "quarantine"),
    ],
)
def test_sources_that_cannot_be_read(tmp_path: Path, make: Any, message: str, hint: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        scan_it(make(tmp_path), tmp_path / "out")
    assert hint in caught.value.hint


def _file(path: Path, data: bytes) -> Path:
    put(path, data)
    return path


@pytest.mark.parametrize("kind", ["folder", "table", "tars"])
def test_a_misspelt_column_is_named_with_a_suggestion(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "d" / "1.png", png())
    (tmp_path / "d" / "metadata.csv").write_text("file_name,title,label\n1.png,t,cat\n")
    source = {"folder": tmp_path / "d", "table": tmp_path / "d" / "metadata.csv"}.get(kind)
    if source is None:
        source = tmp_path / "s.tar"
        write_tar(source, [("0.png", png()), ("0.json", b'{"label": "cat"}')])
    with pytest.raises(DataError, match="'lable' for --label-column") as caught:
        scan_it(source, tmp_path / "out", label_column="lable")
    assert caught.value.hint == "did you mean 'label'?"


# --- tars -----------------------------------------------------------------------------------------


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


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


# --- Parquet and hub ------------------------------------------------------------------------------


def write_parquet(path: Path, count: int, *, start: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": png(i), "path": f"{i}.png"} for i in range(start, start + count)]
    table = pa.table({"image": images, "caption": [f"c{i}" for i in range(count)], "label": ["cat"] * count})
    pq.write_table(table, path, row_group_size=2)


def test_parquet_with_image_bytes_by_split(tmp_path: Path) -> None:
    write_parquet(tmp_path / "d" / "train-00000-of-00002.parquet", 5)
    write_parquet(tmp_path / "d" / "train-00001-of-00002.parquet", 2, start=5)
    write_parquet(tmp_path / "d" / "test-00000-of-00001.parquet", 1, start=90)
    write_parquet(tmp_path / "d" / "train_truth.parquet", 1)  # not a shard
    manifest, summary = scan_it(tmp_path / "d", tmp_path / "out")
    assert summary["splits"] == {"train": 7, "test": 1}
    store = ImageStore(manifest)
    assert [store.read(i) for i in (6, 0, 3, 7)] == [png(6), png(0), png(3), png(90)]
    assert manifest.samples["id"].tolist()[0] == "train/0.png"


def test_parquet_row_without_image(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([png(), None], pa.binary()), "label": ["a", "b"]})
    pq.write_table(table, tmp_path / "t.parquet")
    _, summary = scan_it(tmp_path / "t.parquet", tmp_path / "out")
    assert summary["quarantined_by"] == {"no-image": 1}


def test_hugging_face_data_set(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for name, start, count in (("train", 0, 3), ("test", 50, 2)):
        write_parquet(tmp_path / "d" / f"{name}-00000-of-00001.parquet", count, start=start)
    manifest, summary = scan_it(f"hub:{tmp_path / 'd'}", tmp_path / "out")
    assert summary["splits"] == {"train": 3, "test": 2}
    assert ImageStore(manifest).read(4) == png(51)


def test_unknown_hub_name_is_an_error_with_a_hint(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="hub:") as caught:
        scan_it(f"hub:{tmp_path / 'nothing-here'}", tmp_path / "out")
    assert "check the name" in caught.value.hint


def test_class_label_numbers_become_names(tmp_path: Path) -> None:
    info = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pa.table({"image": pa.array([png(1), png(2), png(3)], pa.binary()), "label": [1, 0, -1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, tmp_path / "t.parquet")
    manifest, summary = scan_it(tmp_path / "t.parquet", tmp_path / "out")
    assert manifest.samples["labels"].tolist() == [("dog",), ("cat",)]
    assert summary["quarantined_by"] == {"no-label": 1}


# --- manifest -------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORD = st.fixed_dictionaries(
    {
        "id": TEXT,
        "split": st.sampled_from(["train", "val", "test"]),
        "source": st.just(0),
        "path": TEXT,
        "offset": st.none() | st.integers(0, 2**62),
        "size": st.none() | st.integers(0, 2**40),
        "row": st.none() | st.integers(0, 2**40),
        "title": TEXT,
        "description": TEXT,
        "tags": TEXT,
        "labels": st.lists(TEXT, max_size=3),
        "width": st.integers(1, 9999),
        "height": st.integers(1, 9999),
        "format": st.just("PNG"),
        "sha256": st.just("0" * 64),
        "status": st.sampled_from(["ok", "quarantined"]),
        "reason": st.none() | TEXT,
        "detail": st.none() | TEXT,
    }
)


@given(records=st.lists(RECORD, max_size=12))
def test_manifest_round_trip(tmp_path_factory: Any, records: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("manifest") / "manifest.parquet"
    sources = [Source("tars", "/data", None), Source("parquet", "/other", "image")]
    write_manifest(path, iter(records), task="multi", sources=sources)
    manifest = Manifest.load(path)
    assert manifest.table.to_pylist() == records
    assert manifest.sources == sources
    assert manifest.task == "multi"
    ok = [record["id"] for record in records if record["status"] == "ok"]
    assert manifest.samples["id"].tolist() == ok


def test_every_reason_has_words() -> None:
    for reason in (*REASONS, *ROW_REASONS):
        assert len(explain(reason).split()) > 2


def test_a_damaged_manifest_is_told(tmp_path: Path) -> None:
    put(tmp_path / "manifest.parquet", b"PAR1 nothing")
    with pytest.raises(DataError, match="damaged"):
        Manifest.load(tmp_path / "manifest.parquet")


def test_a_vanished_image_is_told_with_its_sample(tmp_path: Path) -> None:
    put(tmp_path / "d" / "a" / "1.png", png())
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out")
    (tmp_path / "d" / "a" / "1.png").unlink()
    with pytest.raises(DataError, match=r"train/a/1\.png"):
        ImageStore(manifest).read(0)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows", "classes"),
    [("queryweb32/train", 9846, 33), ("cococap64", 10_000, 17), ("shopweb64/train", 7401, 24)],
)
def test_real_data_sets(shared: Path, tmp_path: Path, name: str, rows: int, classes: int) -> None:
    summary = scan_sources(
        readers.find(DataSettings(), source=str(shared / name)), tmp_path, ScanSettings(workers=2)
    )
    assert summary["rows"] == summary["samples"] == rows
    assert summary["quarantined"] == 0
    assert len(summary["classes"]) == classes
    assert summary["splits"]["train"] == {10_000: 8000}.get(rows, rows)
