"""Data in memory becomes a source that the readers know."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from capro.data.memory import hub_images, is_hub_data, with_labels, write_frame_source, write_hub_source
from capro.errors import DataError
from tests.data.corpus import png
from tests.data.scanning import put, scan_it


def test_a_frame_of_paths_is_read_back(tmp_path: Path) -> None:
    for seed in (1, 2):
        put(tmp_path / "a" / f"{seed}.png", png(seed))
    frame = pd.DataFrame({"path": [tmp_path / "a" / "1.png", str(tmp_path / "a" / "2.png")], "title": "t"})
    table = tmp_path / "t.parquet"
    found = write_frame_source(with_labels(frame, ["cat", "dog"]), table)
    manifest, _ = scan_it(found.pop("source"), tmp_path / "out", **found)
    assert manifest.samples["labels"].tolist() == [("cat",), ("dog",)]
    before = table.stat().st_mtime_ns
    write_frame_source(with_labels(frame, ["cat", "dog"]), table)
    assert table.stat().st_mtime_ns == before  # the same rows are not written again
    write_frame_source(with_labels(frame, ["cat", "cat"]), table)
    assert table.stat().st_mtime_ns != before


def test_frames_that_cannot_be_used() -> None:
    for frame, message in (
        (pd.DataFrame({"x": ["a"]}), "no column with paths among x"),
        (pd.DataFrame({"path": ["a"]}), "no column with labels"),
        (pd.DataFrame({"path": [""], "label": ["a"]}), "no row has a path"),
    ):
        with pytest.raises(DataError, match=message):
            write_frame_source(frame, Path("never.parquet"))
    with pytest.raises(DataError, match="1 rows, but 2 labels"):
        with_labels(pd.DataFrame({"path": ["a"]}), ["a", "b"])


@pytest.mark.parametrize("several", [False, True])
def test_hugging_face_data_is_read_back(tmp_path: Path, several: bool) -> None:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["cat", "dog"])
    kinds = {"image": datasets.Image(), "label": datasets.Sequence(label) if several else label}
    images = [{"bytes": png(seed), "path": None} for seed in (1, 2)]
    labels = [[1, 0], []] if several else [1, 0]
    rows = {"image": images, "label": labels, "caption": ["one", "two"]}
    features = datasets.Features({**kinds, "caption": datasets.Value("string")})
    data = datasets.Dataset.from_dict(rows, features=features)
    assert is_hub_data(data)
    found = write_hub_source({"train": data, "validation": data}, tmp_path / "t.parquet")
    manifest, summary = scan_it(found.pop("source"), tmp_path / "out", **found)
    assert summary["splits"] == {"train": 2, "val": 2}
    wanted = [("dog", "cat"), ()] if several else [("dog",), ("cat",)]
    assert manifest.samples["labels"].tolist() == wanted * 2
    assert manifest.samples["title"].tolist() == ["one", "two"] * 2
    assert [*hub_images(data)] == [("row 0", png(1)), ("row 1", png(2))]
