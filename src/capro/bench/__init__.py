"""The grids behind the paper's tables, at any scale: `capro bench TABLE`."""

from __future__ import annotations

from capro.bench.derived import NotForThisData
from capro.bench.grids import PINNED, TABLES
from capro.bench.runner import Bench, bench

__all__ = ["PINNED", "TABLES", "Bench", "NotForThisData", "bench"]
