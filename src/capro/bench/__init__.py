"""The grids behind the paper's tables, at any scale: `capro bench TABLE`."""

from __future__ import annotations

from capro.bench.grids import TABLES
from capro.bench.novelty import NotForThisData
from capro.bench.pinned import pinned
from capro.bench.runner import Bench, bench

__all__ = ["TABLES", "Bench", "NotForThisData", "bench", "pinned"]
