"""Which pictures are most like one: cosine in the embedding, by blocks of a memory map. O(n d)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.graph.budget import release

BLOCK = 8192  # rows in memory at once


def likeness(v: NDArray[np.floating[Any]], row: int) -> NDArray[np.float32]:
    """Cosine of every row with one, (n,); the row itself has 1.

    >>> likeness(np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), 0).round(2).tolist()
    [1.0, 0.7099999785423279, 0.0]
    """
    wanted = np.asarray(v[row], dtype=np.float32)
    wanted = wanted / max(float(np.linalg.norm(wanted)), 1e-12)
    found = np.empty(len(v), dtype=np.float32)
    for begin in range(0, len(v), BLOCK):
        part = np.asarray(v[begin : begin + BLOCK], dtype=np.float32)
        size = np.maximum(np.linalg.norm(part, axis=1), 1e-12)
        found[begin : begin + BLOCK] = part @ wanted / size
        release(v)
    return found


def nearest_of(v: NDArray[np.floating[Any]], row: int, among: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The k rows among some that are most like a row, without itself, the nearest first."""
    among = among[among != row]
    part = np.asarray(v[among], dtype=np.float32)
    size = np.maximum(np.linalg.norm(part, axis=1), 1e-12)
    return among[np.argsort(-(part @ np.asarray(v[row], dtype=np.float32) / size), kind="stable")[:k]]
