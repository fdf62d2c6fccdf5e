"""FiftyOne's layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.config import DataSettings
from capro.data import readers
from capro.data.readers.fiftyone import FiftyOneReader
from tests.data.readers.cases import fiftyone_folder


@pytest.mark.parametrize("format", ["auto", "fiftyone"])
def test_fiftyone_is_recognised_and_can_be_asked_for(tmp_path: Path, format: str) -> None:
    source = fiftyone_folder(tmp_path / "d")
    found = readers.find(DataSettings(format=format), source=str(source))
    assert [type(reader) for reader in found] == [FiftyOneReader]
    rows = [*found[0].rows()]
    assert [(row.labels, row.title, row.problem) for row in rows] == [
        (("dog",), "", None),
        (("cat",), "Tom", None),
    ]
