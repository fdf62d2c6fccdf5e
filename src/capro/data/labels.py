"""Labels: the one place that knows whether a dataset is single-label or multi-label, and how labels are encoded.

Single-label: class numbers, (n,) int64, with NO_CLASS (-1) for a sample without a class (unknown, or dropped).
Multi-label: membership, (n, C) int64 in {0, 1}; a row of -1 is a sample that was dropped.

Everything that differs between the two is asked of a `LabelKind`. Get it from what is at hand:

    manifest.kind, training.kind    a dataset
    kind_of(labels)                 an array of labels (or of anything that has their shape)
    SINGLE_LABEL, MULTI_LABEL       the two themselves

and ask ``kind.multi_label`` only where no method fits: two pages, two sentences, two files. The losses and the label
rule of the two are in `capro.train.tasks`, the two estimators of the method plus in `capro.core.posterior`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from capro.errors import DataError

if TYPE_CHECKING:
    from capro.data.manifest import Manifest

T = TypeVar("T")
NO_CLASS = -1
Labels = NDArray[np.int64]  # (n,) or (n, C)
Names = Sequence[Sequence[str]]  # the label names of each sample


class SingleLabel:
    """One class per sample. Methods take numpy arrays; those that return masks take tensors as well.

    Attributes:
        multi_label: Whether a sample may carry any number of labels.
        task: How manifests, reports and model folders call it.
        words: How sentences call it: "one label" per sample, "several labels" each.

    >>> y = SINGLE_LABEL.encode([("cat",), ("dog",), ()], ["dog", "cat"])
    >>> y.tolist(), SINGLE_LABEL.decode(y[0], ["dog", "cat"]), SINGLE_LABEL.labelled(y).tolist()
    ([1, 0, -1], ('cat',), [True, True, False])
    >>> SINGLE_LABEL.membership(y, 2).tolist(), SINGLE_LABEL.counts(y, 2).tolist()
    ([[False, True], [True, False], [False, False]], [1, 1])
    """

    multi_label = False
    task: Literal["single", "multi"] = "single"
    words = "one label"

    def encode(self, names: Names, classes: Sequence[str]) -> Labels:
        """Label names as numbers; names outside the class list are left out."""
        index = {name: number for number, name in enumerate(classes)}
        first = [index.get(row[0], NO_CLASS) if row else NO_CLASS for row in names]
        return np.array(first, dtype=np.int64)

    def decode(self, row: Any, classes: Sequence[T]) -> tuple[T, ...]:
        """The classes of one sample, from its row of `encode`; none for a dropped sample."""
        return (classes[int(row)],) if row >= 0 else ()

    def states(self, classes: int) -> int:
        """Columns of a posterior: the classes; single-label: and none of these, which is the last."""
        return classes + 1

    def dropped(self, labels: Any) -> Any:
        """Which samples left the dataset, (n,) bool."""
        return labels < 0

    def labelled(self, labels: Any) -> Any:
        """Which samples have a label of the class list, (n,) bool."""
        return labels >= 0

    def has_class(self, labels: Any, number: int) -> Any:
        """Which samples have this class, (n,) bool."""
        return labels == number

    def membership(self, labels: Labels, classes: int) -> NDArray[np.bool_]:
        """Which classes each sample has, (n, C)."""
        member = np.zeros((len(labels), classes), dtype=bool)
        known = np.flatnonzero(labels >= 0)
        member[known, labels[known]] = True
        return member

    def counts(self, labels: Labels, classes: int) -> NDArray[np.int64]:
        """Samples of each class, (C,)."""
        return np.bincount(labels[labels >= 0], minlength=classes)


class MultiLabel:
    """Any number of classes per sample; the same attributes and methods as `SingleLabel`.

    >>> y = MULTI_LABEL.encode([("cat", "dog"), ("bird",)], ["dog", "cat"])
    >>> y.tolist(), MULTI_LABEL.decode(y[0], ["dog", "cat"]), MULTI_LABEL.labelled(y).tolist()
    ([[1, 1], [0, 0]], ('dog', 'cat'), [True, False])
    """

    multi_label = True
    task: Literal["single", "multi"] = "multi"
    words = "several labels"

    def encode(self, names: Names, classes: Sequence[str]) -> Labels:
        index = {name: number for number, name in enumerate(classes)}
        member = np.zeros((len(names), len(classes)), dtype=np.int64)
        for number, row in enumerate(names):
            member[number, [index[name] for name in row if name in index]] = 1
        return member

    def decode(self, row: Any, classes: Sequence[T]) -> tuple[T, ...]:
        return tuple(name for name, value in zip(classes, row, strict=True) if value > 0)

    def states(self, classes: int) -> int:
        return classes

    def dropped(self, labels: Any) -> Any:
        return (labels < 0).any(1)

    def labelled(self, labels: Any) -> Any:
        return (labels > 0).any(1)

    def has_class(self, labels: Any, number: int) -> Any:
        return labels[:, number] > 0

    def membership(self, labels: Labels, _: int) -> NDArray[np.bool_]:
        return np.asarray(labels > 0)

    def counts(self, labels: Labels, _: int) -> NDArray[np.int64]:
        return np.asarray((labels > 0).sum(axis=0))


LabelKind = SingleLabel | MultiLabel
SINGLE_LABEL, MULTI_LABEL = SingleLabel(), MultiLabel()


def kind_of(labels: Any) -> LabelKind:
    """The kind of labels, (n,) or (n, C), by their shape: the one place that asks for it.

    >>> kind_of(np.zeros((5, 3))).words
    'several labels'
    """
    return MULTI_LABEL if labels.ndim == 2 else SINGLE_LABEL


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
    names = {plain_label(name): name for name in reversed([*known])}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        names.setdefault(plain_label(name), name)
    return {name: names[plain_label(name)] for name in counts if names[plain_label(name)] != name}


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
        others: What becomes of a label that is not in the list: an error, or it is left out (single-label: the
            sample gets NO_CLASS).
    """
    names = manifest.samples["labels"].iloc[positions].tolist()
    if others == "refuse":
        unknown = sorted({name for row in names for name in row} - set(classes))
        if unknown:
            raise DataError(
                f"{len(unknown)} labels are not among the classes, for example {unknown[0]!r}",
                hint="add them to classes.yaml, or leave data.classes unset to take them from the data",
            )
    return manifest.kind.encode(names, classes)


def known_labels(manifest: Manifest, positions: NDArray[np.int64], classes: Sequence[str]) -> Labels:
    """Labels of samples to measure on. Single-label: a label outside the list is an open-set sample (-1)."""
    return labels_of(manifest, positions, classes, others="refuse" if manifest.multi_label else "leave out")
