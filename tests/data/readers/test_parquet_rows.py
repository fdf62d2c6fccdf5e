"""Parquet files with rows that cannot be read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capro.data.readers.parquet_rows import class_labels, parquet_records
from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import reasons, scan_it, write_parquet

LIMIT = 1000


def test_text_that_is_not_utf8_is_read_with_replacement_characters(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"title": text, "n": [1, 2, 3]}), tmp_path / "t.parquet")
    found = [*parquet_records(tmp_path / "t.parquet", None, LIMIT)]
    assert [record.cells for record in found] == [
        {"title": "good", "n": 1},
        {"title": "caf\N{REPLACEMENT CHARACTER}", "n": 2},
        {"title": None, "n": 3},
    ]
    assert [record.replaced for record in found] == [False, True, False]


def test_a_date_out_of_range_costs_its_row_and_none_where_it_is_not_read(tmp_path: Path) -> None:
    when = pa.array([0, 10**15, 1], pa.timestamp("s"))
    pq.write_table(pa.table({"title": ["a", "b", "c"], "when": when}), tmp_path / "t.parquet")
    found = [*parquet_records(tmp_path / "t.parquet", None, LIMIT)]
    assert [bool(record.problem) for record in found] == [False, True, False]
    assert found[1].problem.startswith("row 2: ")
    found = [*parquet_records(tmp_path / "t.parquet", ["title"], LIMIT)]
    assert [record.cells for record in found] == [{"title": "a"}, {"title": "b"}, {"title": "c"}]


def test_a_row_group_above_the_limit_is_one_row_that_says_so(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", 5)  # groups of 2, 2 and 1
    manifest, summary = scan_it(tmp_path / "t.parquet", tmp_path / "out", max_group_rows=1)
    assert summary["samples"] == 1
    assert summary["quarantined_by"] == {"large-group": 2}
    assert "rows 3 to 4: 2 in row group 2" in manifest.frame["detail"].tolist()


@pytest.mark.parametrize("features", [[], {"label": []}, {"label": {"names": 5}}, None, "x"])
def test_metadata_that_is_no_mapping(features: object) -> None:
    text = json.dumps({"info": {"features": features}})
    assert class_labels(pa.schema([("label", pa.int64())], metadata={"huggingface": text})) == {}
    assert class_labels(pa.schema([], metadata={"huggingface": "[1]"})) == {}
    assert class_labels(pa.schema([], metadata={"huggingface": "[" * 100_000})) == {}


def test_structs_whose_bytes_are_no_binary(tmp_path: Path) -> None:
    images = [{"bytes": "text", "path": "/etc/passwd"}, {"bytes": None, "path": "/etc/passwd"}]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="2 rows, none of which can be used"):
        scan_it(tmp_path / "t.parquet", tmp_path / "out")


def test_the_path_beside_empty_bytes_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(1))
    images = [{"bytes": None, "path": str(tmp_path / "secret.png")}, {"bytes": png(2), "path": "2.png"}]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "t.parquet")
    manifest, _ = scan_it(tmp_path / "t.parquet", tmp_path / "out")
    assert [*reasons(manifest).values()] == ["no-image"]


@pytest.mark.parametrize("content", [b"PAR1 nonsense PAR1", b"", None])
def test_a_second_shard_that_is_broken_or_of_another_type(tmp_path: Path, content: bytes | None) -> None:
    write_parquet(tmp_path / "d" / "train-00000-of-00002.parquet", 2)
    second = tmp_path / "d" / "train-00001-of-00002.parquet"
    if content is None:
        pq.write_table(pa.table({"image": [1, 2], "label": [[["x"]], [["y"]]]}), second)
    else:
        second.write_bytes(content)
    _, summary = scan_it(tmp_path / "d", tmp_path / "out")
    assert summary["samples"] == 2
    assert summary["quarantined_by"] == ({"no-image": 2} if content is None else {"broken-file": 1})


def test_mutated_files_never_raise_anything_else(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", 6)
    whole, draw = (tmp_path / "t.parquet").read_bytes(), random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(1, 5)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "m.parquet").write_bytes(damaged)
        try:
            found = [*parquet_records(tmp_path / "m.parquet", None, LIMIT)]
        except DataError:
            continue
        assert [record.number for record in found] == [*range(1, len(found) + 1)] or len(found) <= 6
