"""Rates of this machine, for benchmarks that compare a time with its limit."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

SIDE = 1536  # of the matrices: large enough for the full rate


def rate(work: Callable[[], object], least: float = 2.0) -> float:
    """Calls per second: of the best of several rounds, after one that does not count."""
    work()
    best, begin = 0.0, time.perf_counter()
    while time.perf_counter() - begin < least:
        start = time.perf_counter()
        work()
        best = max(best, 1 / (time.perf_counter() - start))
    return best


def product_rate() -> float:
    """Floating point operations per second of a product of matrices."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    return 2 * SIDE**3 * rate(lambda: a @ b)


def copy_rate() -> float:
    """Bytes per second of a copy that no cache holds."""
    block = np.ones(2**25)
    other = np.empty_like(block)
    return block.nbytes * rate(lambda: np.copyto(other, block))
