"""FiftyOne's layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capro.config import DataSettings
from capro.data import readers
from capro.data.readers.fiftyone import FiftyOneReader
from capro.stages.scan import Sources, find_sources
from tests.data.corpus import png
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


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("changed", ["labels.json", "data.json", "data/1.png"])
def test_a_changed_file_is_scanned_again(tmp_path: Path, changed: str, listed: bool) -> None:
    source = fiftyone_folder(tmp_path / "d")
    if listed:
        (source / "data.json").write_text(json.dumps({"1": "data/1.png", "2": str(source / "data/2.png")}))
    before, again = fingerprint(source), fingerprint(source)
    assert before == again
    file = source / changed
    file.write_bytes(
        png(3) if file.suffix == ".png" else (file.read_bytes() if file.exists() else b"{}") + b" "
    )
    assert fingerprint(source) != before


def fingerprint(source: Path) -> str:
    return Sources(find_sources(DataSettings(source=str(source)))).fingerprint
