"""What cleaning did to the labels: counts by class, from where to where, and classes with something wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from capro.pipeline.run import Run

SENTENCES = {  # by the kinds of `capro.core.label_rule.diagnose`
    "anchors": "{share:.0%} of the anchors of {names} get another label: its sense or definition may be wrong",
    "one class": "{names} can hardly be separated: they may be one class",
    "sense": "hardly any text of {names} is nearest to its own class text: its sense may be wrong",
}


def class_findings(run: Run) -> list[dict[str, Any]]:
    """What the posterior stage found: kind, classes, share, samples; empty where it has not run."""
    return list(run.result("posterior")["findings"]) if run.finished("posterior") else []


def finding_text(finding: dict[str, Any]) -> str:
    """A finding as a sentence.

    >>> finding_text({"kind": "one class", "classes": ["bat", "club"], "share": 0.4})
    "'bat' and 'club' can hardly be separated: they may be one class"
    """
    names = " and ".join(f"'{name}'" for name in finding["classes"])
    return SENTENCES[finding["kind"]].format(names=names, share=finding["share"])


KINDS = ("anchor", "keep", "away", "arrived", "drop")
ANCHOR, KEEP, AWAY, ARRIVED, DROP = range(len(KINDS))
Ints = NDArray[np.int64]
Counts = sparse.csr_array  # of class by class


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


def given_count(counts: Ints) -> Ints:
    """How many labels were given, of counts by kind, (..., 5) -> (...)."""
    return np.asarray(counts.sum(axis=-1) - counts[..., ARRIVED])


def wrong_share(counts: Ints) -> NDArray[np.float64]:
    """Share of the given labels that cleaning judged wrong, of counts by kind, (..., 5) -> (...); 0 if none was given.

    >>> float(wrong_share(np.array([1, 4, 3, 7, 2])))
    0.5
    """
    return np.asarray((counts[..., AWAY] + counts[..., DROP]) / np.maximum(1, given_count(counts)))


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


def counts_of(rows: Ints, columns: Ints, shape: tuple[int, int], times: Ints | None = None) -> Counts:
    """How often each (row, column) occurs, or the sum of its times.

    >>> counts_of(np.array([0, 0, 1]), np.array([1, 1, 0]), (2, 2)).toarray().tolist()
    [[0, 2], [1, 0]]
    """
    times = np.ones(len(rows), dtype=np.int64) if times is None else times
    return sparse.coo_array((times, (rows, columns)), shape=shape).tocsr()


def flow(given: Ints, after: Ints, classes: int) -> Counts:
    """Labels from (row) and to (column) each class, (C + 1, C + 1); the last is *no class*.

    In multi-label data a label stays, leaves to no class, or comes from no class.

    >>> flow(np.array([0, 0, 1]), np.array([0, 1, -1]), 2).toarray().tolist()
    [[1, 1, 0], [0, 0, 1], [0, 0, 0]]
    """
    size = classes + 1
    if given.ndim == 2:
        had, has, own, no_class = given > 0, after > 0, np.arange(classes), np.full(classes, classes)
        times = [(had & has).sum(axis=0), (had & ~has).sum(axis=0), (~had & has).sum(axis=0)]
        origin, target = np.concatenate([own, own, no_class]), np.concatenate([own, no_class, own])
        return counts_of(origin, target, (size, size), np.concatenate(times))
    origin = np.where(given < 0, classes, given)
    target = np.where(after < 0, classes, after)
    return counts_of(origin, target, (size, size))


def given_by_corrected(given: Ints, after: Ints, classes: int) -> Counts:
    """Samples with the row's web label that carry the column's now, (C, C + 1); last: dropped.

    In multi-label data, off the diagonal only labels count that the sample did not have.
    """
    if given.ndim == 1:
        return flow(given, after, classes)[:classes]
    had, new = (sparse.csr_array(part.astype(np.int64)) for part in (given > 0, (after > 0) & (given == 0)))
    own = flow(given, after, classes)[:classes]  # stayed, and dropped
    return sparse.csr_array(sparse.hstack([had.T @ new + own[:, :classes], own[:, classes:]]))


def bundle(matrix: Counts, limit: int) -> tuple[Ints, list[int]]:
    """Keep the classes with most change, pour the others into one, ahead of *no class*.

    Args:
        matrix: (C + 1, C + 1), of `flow`.
        limit: classes to keep.

    Returns:
        The matrix, and the kept classes in order; -1 stands for the bundle.

    >>> bundle(sparse.csr_array([[5, 1, 0], [0, 9, 0], [0, 0, 0]]), 1)[1]
    [0, -1]
    """
    classes = matrix.shape[0] - 1
    if classes <= limit:
        return matrix.toarray(), list(range(classes))
    kept = most_off_diagonal(matrix, limit, classes)
    place = np.full(classes + 1, limit)
    place[kept] = np.arange(limit)
    place[classes] = limit + 1
    cells = matrix.tocoo()
    small = counts_of(place[cells.row], place[cells.col], (limit + 2, limit + 2), cells.data)
    return small.toarray(), [*kept, -1]


def most_off_diagonal(matrix: Counts, limit: int, classes: int | None = None) -> list[int]:
    """The classes with most off the diagonal of a (C or more, C or more) matrix, in order, at most limit."""
    classes = matrix.shape[0] if classes is None else classes
    moved = matrix.sum(axis=1)[:classes] + matrix.sum(axis=0)[:classes] - 2 * matrix.diagonal()[:classes]
    return sorted(np.argsort(-moved, kind="stable")[:limit].tolist())


# --- how strict dropping is -----------------------------------------------------------------------

DROP_VALUES = (0.3, 0.5, 0.7, 0.9)  # of plus.drop_above


class DropLevel(NamedTuple):
    """What a value of `plus.drop_above` drops."""

    value: float
    dropped: int  # samples in all
    rows: Ints  # those of them that the next larger value keeps, the surest first


def drop_levels(none_share: NDArray[np.float64], current: float) -> list[DropLevel]:
    """What `DROP_VALUES` and the current value would drop, the most cautious first.

    Args:
        none_share: q(none) / (q(none) + q(best class)), (n,): `VerdictStore.none_share`.
        current: The run's `plus.drop_above`.

    >>> [(level.value, level.dropped, level.rows.tolist()) for level in drop_levels(np.array([0.95, 0.1, 0.6]), 0.5)]
    [(0.9, 1, [0]), (0.7, 1, []), (0.5, 2, [2]), (0.3, 2, [])]
    """
    surest = np.argsort(-none_share, kind="stable")
    levels, begin = [], 0
    for value in sorted({*DROP_VALUES, current}, reverse=True):
        dropped = int((none_share > value).sum())
        levels.append(DropLevel(value, dropped, surest[begin:dropped]))
        begin = dropped
    return levels
