"""The one encoding of labels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from capro.data.labels import alike, encode, joined_names, known_labels, labels_of
from capro.data.manifest import Manifest, Task, schema
from capro.errors import DataError


def manifest(task: Task, labels: list[list[str]]) -> Manifest:
    rows = [
        {"id": str(number), "split": "train", "status": "ok"}
        | ({"label": names[0] if names else None} if task == "single" else {"labels": names})
        for number, names in enumerate(labels)
    ]
    return Manifest(pa.Table.from_pylist(rows, schema=schema(task, [])))


def test_numbers_follow_the_order_of_the_classes() -> None:
    found = manifest("single", [["b"], ["a"], ["b"]])
    assert labels_of(found, np.array([2, 1]), ["a", "b"]).tolist() == [1, 0]
    several = manifest("multi", [["b", "a"], []])
    assert labels_of(several, np.arange(2), ["a", "b"]).tolist() == [[1, 1], [0, 0]]
    assert encode([("a",)], ["a", "b"], several=True).dtype == np.int64


def test_a_label_outside_the_list_is_refused_or_open() -> None:
    found = manifest("single", [["a"], ["z"]])
    with pytest.raises(DataError, match="1 labels are not among the classes, for example 'z'") as caught:
        labels_of(found, np.arange(2), ["a"])
    assert "classes.yaml" in caught.value.hint
    assert labels_of(found, np.arange(2), ["a"], others="leave out").tolist() == [0, -1]
    assert known_labels(found, np.arange(2), ["a"]).tolist() == [0, -1]
    with pytest.raises(DataError, match="not among the classes"):
        known_labels(manifest("multi", [["z"]]), np.arange(1), ["a"])


def test_labels_that_look_alike() -> None:
    counts = {
        "Track Pants": 3,
        "track_pants": 9,
        "boat": 193,
        "Boat": 5,
        "car": 1,
        "Vögel": 1,
        "vo\u0308gel": 1,
    }
    groups = [{"boat": 193, "Boat": 5}, {"track_pants": 9, "Track Pants": 3}, {"Vögel": 1, "vo\u0308gel": 1}]
    assert [*map(sorted, alike(counts))] == [*map(sorted, groups)]
    assert joined_names({"a b": 1, "A-B": 1}) == {"a b": "A-B"}  # of equally many the first by name
    assert joined_names(counts, known=["Boat", "car"])["boat"] == "Boat"
    assert joined_names({"-": 1, "_": 1}) == {}  # nothing would be left of them
