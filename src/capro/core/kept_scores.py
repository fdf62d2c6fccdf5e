"""Scores of samples for classes, of which only the highest of each sample are kept.

Up to DENSE classes that is all of them. With more, an (N, C) array would neither fit into memory nor onto many
disks: MOST are kept, and always those of the labels that a sample came with. Multi-label data has an answer for
every class, and labels of the same size: all of its scores are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.errors import RunError

DENSE = 64
MOST = 16
CLASS = "class"

Entries = NDArray[np.void]  # (n, k), fields CLASS and one per score, the highest first


def width_of(classes: int, *, multi_label: bool = False) -> int:
    """How many scores of a sample are kept."""
    return classes if multi_label or classes <= DENSE else MOST


def entries_type(names: list[str]) -> np.dtype[Any]:
    """Of an entry: its class, and its scores."""
    return np.dtype([(CLASS, "<i4"), *((name, "<f4") for name in names)])


def numbers_only(
    scores: NDArray[Any],
    *,
    place: str = "scores",
    name: Callable[[int], str] = "number {}".format,
    begin: int = 0,
) -> NDArray[Any]:
    """Scores as they are, (n, ...). Nan is an error: the highest of a row would be its first nan.

    Args:
        scores: Whose first axis is samples.
        place: Where they come from, for the message.
        name: From a sample's number to its id.
        begin: Number of the first sample, where these are a block.

    >>> numbers_only(np.array([[0.25, 0.75]])).tolist()
    [[0.25, 0.75]]
    """
    wrong = np.isnan(scores).any(axis=tuple(range(1, scores.ndim)))
    if wrong.any():
        first = int(wrong.argmax())
        raise RunError(
            f"{place}: sample {name(begin + first)} has nan as a score "
            f"(so have {wrong.sum():,} of {len(wrong):,} samples)",
            hint="check the picture; if many samples are affected, train again with a lower learning rate",
        )
    return scores


def keep(
    scores: Mapping[str, NDArray[Any]], also: NDArray[np.bool_] | None = None, *, multi_label: bool = False
) -> Entries:
    """The highest scores of each row and their classes, (n, C) each -> (n, k).

    Args:
        scores: By name; the first decides which are highest, the others are of the same classes.
        also: What is kept in any case, (n, C), up to k of a row.
        multi_label: All scores are kept.

    >>> keep({"a": np.array([[0.1, 0.9]], np.float32)})[0].tolist()
    [(1, 0.8999999761581421), (0, 0.10000000149011612)]
    """
    first = numbers_only(np.asarray(next(iter(scores.values()))), place=f"score '{next(iter(scores))}'")
    n, classes = first.shape
    k = width_of(classes, multi_label=multi_label)
    if k < classes:
        wanted = -first
        if also is not None:
            wanted[also] -= 2
        chosen = np.sort(np.argpartition(wanted, k - 1, axis=1)[:, :k], axis=1)
    else:
        chosen = np.broadcast_to(np.arange(classes), (n, classes))
    order = np.argsort(-np.take_along_axis(first, chosen, 1), axis=1, kind="stable")
    chosen = np.take_along_axis(chosen, order, 1)
    found = np.empty((n, k), entries_type(list(scores)))
    found[CLASS] = chosen
    for name, values in scores.items():
        found[name] = np.take_along_axis(np.asarray(values), chosen, 1)
    return found


@dataclass(frozen=True)
class KeptScores:
    """A matrix of scores, (n, C), read as far as it is asked for: by row, or by row and class.

    Attributes:
        entries: Of `keep`; may be a memory map.
        name: Which of its scores.
        classes: C.
        other: What a class has that was not kept.

    >>> scores = KeptScores(keep({"a": np.array([[0.25, 0.75], [0.5, 0.5]])}), "a", 2)
    >>> scores[0].tolist(), scores[[0, 1], [1, 1]].tolist(), scores.argmax(axis=1).tolist()
    ([0.25, 0.75], [0.75, 0.5], [1, 0])
    """

    entries: Entries
    name: str
    classes: int
    other: float = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, asked: Any) -> NDArray[Any]:
        if isinstance(asked, tuple):
            return self._pairs(*asked)
        part = self.entries[asked]
        found = np.full((*part.shape[:-1], self.classes), self.other, np.float32)
        np.put_along_axis(found, part[CLASS].astype(np.int64), part[self.name], -1)
        return found

    def _pairs(self, rows: Any, columns: Any) -> NDArray[Any]:
        part = self.entries[rows]
        here = part[CLASS] == np.asarray(columns)[..., None]
        value = np.where(here, part[self.name], 0).sum(-1)
        return np.where(here.any(-1), value, np.float32(self.other))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy
        return self[:] if dtype is None else self[:].astype(dtype)

    def argmax(self, axis: int = 1) -> NDArray[np.int64]:
        """The class of each row's highest score, (n,)."""
        del axis
        return np.asarray(self.entries[:, 0][CLASS], dtype=np.int64)

    def max(self, axis: int = 1) -> NDArray[Any]:
        """Each row's highest score, (n,)."""
        del axis
        return np.asarray(self.entries[:, 0][self.name])
