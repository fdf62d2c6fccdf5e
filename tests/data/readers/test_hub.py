"""Hugging Face datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.data.pixels import ImageStore
from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import scan_it, write_parquet


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
