"""What cleaning did to the labels, counted: by class, from where to where. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KINDS = ("anchor", "keep", "away", "arrived", "drop")
ANCHOR, KEEP, AWAY, ARRIVED, DROP = range(len(KINDS))
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LabelChanges:
    """Every (sample, class) that carried or carries a label, and what became of it.

    ``away`` is a label that was taken from a sample which stays in the set, ``arrived`` one that it
    got, ``drop`` a label that left with its sample.
    """

    row: Ints
    label: Ints
    kind: Ints  # place in KINDS

    def counts(self, classes: int) -> Ints:
        """How many of each kind every class has, (C, 5)."""
        flat = self.label * len(KINDS) + self.kind
        return np.bincount(flat, minlength=classes * len(KINDS)).reshape(classes, len(KINDS))


def label_changes(given: Ints, after: Ints, anchored: NDArray[np.bool_]) -> LabelChanges:
    """Compare given and corrected labels.

    Args:
        given: (n,) classes with -1 for none, or (n, C) membership.
        after: same shape; -1, or a row of -1, is dropped.
        anchored: same shape; anchors that the rule protected.

    >>> found = label_changes(np.array([0, 0, 1, 1]), np.array([0, 1, -1, 1]), np.array([True] + 3 * [False]))
    >>> [(r, c, KINDS[k]) for r, c, k in zip(found.row.tolist(), found.label.tolist(), found.kind)]
    [(0, 0, 'anchor'), (1, 0, 'away'), (2, 1, 'drop'), (3, 1, 'keep'), (1, 1, 'arrived')]
    """
    if given.ndim == 2:
        out = np.any(after < 0, axis=1)
        had, has = given > 0, (after > 0) & ~out[:, None]
        row, label = np.nonzero(had)
        stays, anchor = has[row, label], anchored[row, label]
        new_row, new_label = np.nonzero(has & ~had)
    else:
        out = after < 0
        row = np.flatnonzero(given >= 0)
        label = given[row]
        stays, anchor = after[row] == label, anchored[row]
        new_row = np.flatnonzero(~out & (after != given))
        new_label = after[new_row]
    kind = np.select([out[row], stays & anchor, stays], [DROP, ANCHOR, KEEP], AWAY)
    parts = (row, new_row), (label, new_label), (kind, np.full(len(new_row), ARRIVED))
    return LabelChanges(*(np.concatenate(part).astype(np.int64) for part in parts))


def flow(given: Ints, after: Ints, classes: int) -> Ints:
    """Labels from (row) and to (column) each class, (C + 1, C + 1); the last is *no class*.

    With several labels a label stays, leaves to no class, or comes from no class.

    >>> flow(np.array([0, 0, 1]), np.array([0, 1, -1]), 2).tolist()
    [[1, 1, 0], [0, 0, 1], [0, 0, 0]]
    """
    size = classes + 1
    if given.ndim == 2:
        had, has = given > 0, after > 0
        matrix = np.zeros((size, size), dtype=np.int64)
        np.fill_diagonal(matrix[:classes, :classes], (had & has).sum(axis=0))
        matrix[:classes, classes] = (had & ~has).sum(axis=0)
        matrix[classes, :classes] = (~had & has).sum(axis=0)
        return matrix
    origin = np.where(given < 0, classes, given)
    target = np.where(after < 0, classes, after)
    return np.bincount(origin * size + target, minlength=size * size).reshape(size, size)


def given_by_corrected(given: Ints, after: Ints, classes: int) -> Ints:
    """Samples with the row's web label that carry the column's now, (C, C + 1); last: dropped.

    With several labels, off the diagonal only labels count that the sample did not have.
    """
    if given.ndim == 1:
        return flow(given, after, classes)[:classes]
    had, has = (given > 0).astype(np.int64), after > 0
    counted = has & (given == 0)
    matrix = np.zeros((classes, classes + 1), dtype=np.int64)
    matrix[:, :classes] = had.T @ counted.astype(np.int64)  # (C, n) x (n, C) -> (C, C)
    np.fill_diagonal(matrix[:, :classes], (had * has).sum(axis=0))
    matrix[:, classes] = (had * ~has).sum(axis=0)
    return matrix


def bundle(matrix: Ints, limit: int) -> tuple[Ints, list[int]]:
    """Keep the classes with most change, pour the others into one, ahead of *no class*.

    Args:
        matrix: (C + 1, C + 1), of `flow`.
        limit: classes to keep.

    Returns:
        The matrix, and the kept classes in order; -1 stands for the bundle.

    >>> bundle(np.array([[5, 1, 0], [0, 9, 0], [0, 0, 0]]), 1)[1]
    [0, -1]
    """
    classes = len(matrix) - 1
    if classes <= limit:
        return matrix, list(range(classes))
    kept = most_off_diagonal(matrix, limit, classes)
    place = np.full(classes + 1, limit)
    place[kept] = np.arange(limit)
    place[classes] = limit + 1
    small = np.zeros((limit + 2, limit + 2), dtype=np.int64)
    np.add.at(small, (place[:, None], place[None, :]), matrix)
    return small, [*kept, -1]


def most_off_diagonal(matrix: Ints, limit: int, classes: int | None = None) -> list[int]:
    """The classes with most off the diagonal of a (C or more, C or more) matrix, in order, at most limit."""
    classes = len(matrix) if classes is None else classes
    off = matrix.copy()
    np.fill_diagonal(off, 0)
    moved = off.sum(axis=1)[:classes] + off.sum(axis=0)[:classes]
    return sorted(np.argsort(-moved, kind="stable")[:limit].tolist())
