"""The manifest as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capro.data.manifest import Manifest, Source, schema, write_manifest
from capro.errors import DataError
from tests.data.scanning import put

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
    write_manifest(path, iter(records), schema(multi_label=True, sources=sources))
    manifest = Manifest.load(path)
    assert manifest.table.to_pylist() == records
    assert manifest.sources == sources
    assert manifest.task == "multi"
    ok = [record["id"] for record in records if record["status"] == "ok"]
    assert manifest.samples["id"].tolist() == ok


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "manifest.parquet", b"PAR1 nothing")
    with pytest.raises(DataError, match="damaged"):
        Manifest.load(tmp_path / "manifest.parquet")
