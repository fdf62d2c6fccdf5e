"""The one encoding of labels.

One label per sample: class numbers, (n,) int64, with NO_CLASS (-1) for a sample without a known label.
Several: membership, (n, C) int64 in {0, 1}.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from capro.data.manifest import Manifest
from capro.errors import DataError

NO_CLASS = -1
Labels = NDArray[np.int64]  # (n,) or (n, C)
Names = Sequence[Sequence[str]]  # the label names of each sample


def plain_label(name: str) -> str:
    """A label without case, blanks, hyphens and underscores: what labels that look alike share.

    >>> plain_label("Track Pants") == plain_label("track_pants "), plain_label("C++") == plain_label("C")
    (True, False)
    """
    return re.sub(r"[\s_-]+", "", unicodedata.normalize("NFC", name)).casefold() or name


def alike(counts: Mapping[str, int]) -> list[dict[str, int]]:
    """Groups of labels that differ only in case, blanks, hyphens or underscores, most frequent first.

    >>> alike({"boat": 193, "Boat": 5, "car": 7})
    [{'boat': 193, 'Boat': 5}]
    """
    groups: dict[str, dict[str, int]] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        groups.setdefault(plain_label(name), {})[name] = counts[name]
    return [group for group in groups.values() if len(group) > 1]


def joined_names(counts: Mapping[str, int], known: Collection[str] = ()) -> dict[str, str]:
    """The name that each label gets where labels that look alike are one class; without those that keep theirs.

    A group is called by its member among the known names, else by its most frequent one.

    >>> joined_names({"boat": 193, "Boat": 5, "car": 7})
    {'Boat': 'boat'}
    >>> joined_names({"boat": 2}, known=["Boat"])
    {'boat': 'Boat'}
    """
    places = {plain_label(name): name for name in reversed([*known])}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        places.setdefault(plain_label(name), name)
    return {name: places[plain_label(name)] for name in counts if places[plain_label(name)] != name}


def encode(names: Names, classes: Sequence[str], *, several: bool) -> Labels:
    """Label names as numbers; names outside the class list are left out.

    >>> encode([("cat",), ("dog",), ()], ["dog", "cat"], several=False).tolist()
    [1, 0, -1]
    >>> encode([("cat", "dog"), ("bird",)], ["dog", "cat"], several=True).tolist()
    [[1, 1], [0, 0]]
    """
    index = {name: number for number, name in enumerate(classes)}
    if not several:
        first = [index.get(row[0], NO_CLASS) if row else NO_CLASS for row in names]
        return np.array(first, dtype=np.int64)
    member = np.zeros((len(names), len(classes)), dtype=np.int64)
    for number, row in enumerate(names):
        member[number, [index[name] for name in row if name in index]] = 1
    return member


def labels_of(
    manifest: Manifest,
    positions: NDArray[np.int64],
    classes: Sequence[str],
    *,
    others: Literal["refuse", "leave out"] = "refuse",
) -> Labels:
    """Labels of some samples of a manifest.

    Args:
        manifest: Whose samples.
        positions: Which of them.
        classes: Names in the order of the class axis.
        others: What becomes of a label that is not in the list: an error, or NO_CLASS (one label; for
            several it is no member of any class).
    """
    names = manifest.samples["labels"].iloc[positions].tolist()
    if others == "refuse":
        unknown = sorted({name for row in names for name in row} - set(classes))
        if unknown:
            raise DataError(
                f"{len(unknown)} labels are not among the classes, for example {unknown[0]!r}",
                hint="add them to classes.yaml, or leave data.classes unset to take them from the data",
            )
    return encode(names, classes, several=manifest.task == "multi")


def known_labels(manifest: Manifest, positions: NDArray[np.int64], classes: Sequence[str]) -> Labels:
    """Labels of samples to measure on: one label outside the list is an open sample (-1)."""
    others: Literal["refuse", "leave out"] = "refuse" if manifest.task == "multi" else "leave out"
    return labels_of(manifest, positions, classes, others=others)
