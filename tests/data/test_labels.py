"""The one encoding of labels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from capro.data.labels import (
    MULTI_LABEL,
    SINGLE_LABEL,
    LabelKind,
    alike,
    joined_names,
    kind_of,
    known_labels,
    labels_of,
)
from capro.data.manifest import Manifest, schema
from capro.errors import DataError


def manifest(task: str, labels: list[list[str]]) -> Manifest:
    rows = [
        {"id": str(number), "split": "train", "status": "ok"}
        | ({"label": names[0] if names else None} if task == "single" else {"labels": names})
        for number, names in enumerate(labels)
    ]
    return Manifest(pa.Table.from_pylist(rows, schema=schema(multi_label=task == "multi", sources=[])))


def test_numbers_follow_the_order_of_the_classes() -> None:
    found = manifest("single", [["b"], ["a"], ["b"]])
    assert labels_of(found, np.array([2, 1]), ["a", "b"]).tolist() == [1, 0]
    listed = manifest("multi", [["b", "a"], []])
    assert labels_of(listed, np.arange(2), ["a", "b"]).tolist() == [[1, 1], [0, 0]]
    assert MULTI_LABEL.encode([("a",)], ["a", "b"]).dtype == np.int64


@pytest.mark.parametrize("kind", [SINGLE_LABEL, MULTI_LABEL], ids=["single", "multi"])
def test_a_kind_answers_for_arrays_and_tensors(kind: LabelKind) -> None:
    classes = ["a", "b", "c"]
    y = kind.encode([("b",), (), ("a",)], classes)
    y = np.concatenate([y, np.full_like(y[:1], -1)])  # the last sample was dropped
    assert kind_of(y) is kind
    assert [kind.decode(row, classes) for row in y] == [("b",), (), ("a",), ()]
    member = [[False, True, False], [False] * 3, [True, False, False], [False] * 3]
    assert kind.membership(y, 3).tolist() == member
    assert kind.counts(y, 3).tolist() == [1, 1, 0]
    for labels in (y, torch.from_numpy(y)):
        assert kind.labelled(labels).tolist() == [True, False, True, False]
        assert kind.has_class(labels, 1).tolist() == [True, False, False, False]
        assert kind.dropped(labels).tolist() == [False, kind is SINGLE_LABEL, False, True]
    assert kind.states(3) == (4 if kind is SINGLE_LABEL else 3)


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
