"""Columns by name, in all readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.config import DataSettings
from capro.data.readers.columns import choose_columns
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


@pytest.mark.parametrize(
    ("names", "title", "description"),
    [
        (["File Name", "Alt Text", "page title"], "Alt Text", "page title"),
        (["path", "alt-text"], "alt-text", None),
        (["path", "TITLE", "Page_Title"], "TITLE", "Page_Title"),
        (["path", "caption", "txt"], "caption", None),  # img2dataset has the same text in both
        (["path", "title", "description", "alt"], "title", "description"),
    ],
)
def test_names_are_guessed_in_any_writing(names: list[str], title: str, description: str | None) -> None:
    found = choose_columns(names, DataSettings(), where="here")
    assert (found.image, found.text, found.description) == (names[0], title, description)


def test_no_column_is_read_twice_as_text() -> None:
    found = choose_columns(["path", "alt text", "title"], DataSettings(text_column="alt text"), where="here")
    assert (found.text, found.description) == ("alt text", None)


def test_columns_that_were_not_read_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "d" / "cat" / "1.png", png())
    (tmp_path / "d" / "metadata.csv").write_text("file_name,Bildtext,Quelle\ncat/1.png,a cat,web\n")
    _, summary = scan_it(tmp_path / "d", tmp_path / "out")
    assert summary["columns"] == {"read": {"image": "file_name"}, "not_read": ["Bildtext", "Quelle"]}
    _, summary = scan_it(tmp_path / "d", tmp_path / "out2", text_column="Bildtext")
    assert summary["columns"]["not_read"] == ["Quelle"]
    write_tar(
        tmp_path / "s.tar",
        [("0.png", png()), ("0.json", b'{"label": "cat", "status": "success", "page": "x"}')],
    )
    _, summary = scan_it(tmp_path / "s.tar", tmp_path / "out3")
    assert summary["columns"] == {"read": {"label": "label"}, "not_read": ["page"]}


@pytest.mark.parametrize("kind", ["folder", "table", "tars"])
def test_test_data_needs_no_column_of_the_crawl(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "d" / "1.png", png(1))
    (tmp_path / "d" / "metadata.csv").write_text("bild,Bildtext,Suchwort\n1.png,a cat,cat\n")
    put(tmp_path / "test" / "cat" / "2.png", png(2))
    (tmp_path / "test.csv").write_text("path,label\ntest/cat/2.png,cat\n")
    write_tar(tmp_path / "t.tar", [("0.png", png(2)), ("0.cls", b"cat")])
    test = {"folder": tmp_path / "test", "table": tmp_path / "test.csv", "tars": tmp_path / "t.tar"}[kind]
    named = {"image_column": "bild", "text_column": "Bildtext", "label_column": "Suchwort"}
    manifest, _ = scan_it(tmp_path / "d", tmp_path / "out", test=str(test), **named)
    assert manifest.samples["split"].tolist() == ["train", "test"]
    assert manifest.samples["labels"].tolist() == [("cat",), ("cat",)]
    assert manifest.samples["title"].tolist() == ["a cat", ""]
