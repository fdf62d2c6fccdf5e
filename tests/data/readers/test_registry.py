"""The registry of formats: every name leads to a declaration, and a wrong one to a hint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capro.config import DataSettings
from capro.data import readers
from capro.data.readers.base import IMAGE_MODES
from capro.errors import ConfigError, DataError
from tests.data.corpus import png
from tests.data.readers.cases import fiftyone_folder
from tests.data.scanning import put, scan_it


@pytest.mark.parametrize("name", readers.FORMATS)
def test_each_line_is_what_its_module_declares(name: str) -> None:
    form = readers.load_format(name)
    assert tuple(form.writers) == readers.FORMATS[name]
    assert form.layout
    for writer in form.writers.values():
        assert set(writer.images) <= set(IMAGE_MODES)


def test_writers_are_found_by_their_own_name() -> None:
    assert {*readers.WRITERS} == {"folder", "csv", "parquet", "webdataset", "hf", "fiftyone"}
    assert readers.load_writer("hf") is readers.load_format("table").writers["hf"]


def test_names_cost_no_import_of_a_format() -> None:
    code = "import sys, capro.data.readers as r; print(*r.FORMATS, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*readers.FORMATS, "False"]


@pytest.mark.parametrize("name", [name for name in readers.FORMATS if name not in ("hub", "folder")])
def test_a_folder_that_is_laid_out_otherwise_is_refused_with_the_layout(tmp_path: Path, name: str) -> None:
    (tmp_path / "1.png").write_bytes(png())
    with pytest.raises(DataError, match=f"does not have the layout of {name}") as caught:
        readers.find(DataSettings(format=name), source=str(tmp_path))
    assert caught.value.hint == readers.load_format(name).layout


def test_an_unknown_format_is_refused_with_a_suggestion_or_the_list(tmp_path: Path) -> None:
    for name, hint in (("fiftyon", "did you mean 'fiftyone'?"), ("x", "known: auto, fiftyone, folder")):
        with pytest.raises(ConfigError, match=f"no format '{name}'") as caught:
            readers.find(DataSettings(format=name), source=str(tmp_path))
        assert caught.value.hint.startswith(hint)
    with pytest.raises(ConfigError, match="no format 'cvs'") as caught:
        readers.load_writer("cvs")
    assert caught.value.hint == "did you mean 'csv'?"


def test_a_tree_of_splits_in_a_format_that_was_asked_for(tmp_path: Path) -> None:
    for split in ("train", "test"):
        fiftyone_folder(tmp_path / split)
    found = readers.find(DataSettings(format="fiftyone"), source=str(tmp_path))
    assert [row.split for reader in found for row in reader.rows()] == ["train"] * 2 + ["test"] * 2


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
        (lambda p: _file(p / "x.tar.gz", b""), "not a source", "decompress it"),
        (lambda p: _file(p / "x.docx", b""), "not a source", "give a folder"),
        (lambda p: _file(p / "x.parquet", b"nonsense"), "not a Parquet file", "complete"),
        (lambda p: _file(p / "x.csv", b"a,b\n1,2\n"), "no column with images", "--image-column"),
        (lambda p: _file(p / "x.csv", b""), "no column with images", "--image-column"),
        (lambda p: _file(p / "d" / "notes.txt", b"hello").parent, "no image in this folder", "give"),
        (lambda p: _file(p / "x.tar", b""), "1 row, none of which", "quarantine"),
    ],
)
def test_sources_that_cannot_be_read(tmp_path: Path, make: Any, message: str, hint: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        scan_it(make(tmp_path), tmp_path / "out")
    assert hint in caught.value.hint


def _file(path: Path, data: bytes) -> Path:
    put(path, data)
    return path
