"""CSV, JSONL and Parquet tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from capro.data.pixels import ImageStore
from tests.data.corpus import png
from tests.data.scanning import put, scan_it, write_parquet


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
    assert [len(text) for text in manifest.samples["title"]] == [100_000, 10, 14, 1, 1]
    assert summary["notes"]["cut_texts"] == 1


def test_labels_as_list_or_separated_are_multi_label(tmp_path: Path) -> None:
    put(tmp_path / "1.png", png())
    (tmp_path / "t.csv").write_text('path,label\n1.png,"cat, dog,cat"\n1.png,bird\n1.png,\n')
    manifest, _ = scan_it(tmp_path / "t.csv", tmp_path / "out", label_separator=",")
    assert manifest.task == "multi"
    assert manifest.samples["labels"].tolist() == [("cat", "dog"), ("bird",), ()]
    (tmp_path / "u.csv").write_text('path,labels\n1.png,"[""cat"", ""dog""]"\n')
    manifest, _ = scan_it(tmp_path / "u.csv", tmp_path / "out2")
    assert manifest.samples["labels"].tolist() == [("cat", "dog")]


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


def test_class_label_numbers_become_names(tmp_path: Path) -> None:
    info = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pa.table({"image": pa.array([png(1), png(2), png(3)], pa.binary()), "label": [1, 0, -1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, tmp_path / "t.parquet")
    manifest, summary = scan_it(tmp_path / "t.parquet", tmp_path / "out")
    assert manifest.samples["labels"].tolist() == [("dog",), ("cat",)]
    assert summary["quarantined_by"] == {"no-label": 1}
