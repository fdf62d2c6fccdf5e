"""Columns by name, in all readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import put, scan_it, write_tar


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
