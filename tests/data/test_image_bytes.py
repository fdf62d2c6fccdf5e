"""Image bytes of samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.data.image_bytes import ImageStore
from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import put, scan_it


def test_a_vanished_image_is_reported_with_its_sample(tmp_path: Path) -> None:
    put(tmp_path / "d" / "a" / "1.png", png())
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out")
    (tmp_path / "d" / "a" / "1.png").unlink()
    with pytest.raises(DataError, match=r"train/a/1\.png"):
        ImageStore(manifest).read(0)
