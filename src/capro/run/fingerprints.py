"""Fingerprints of what decides a result, and independent seeds for named purposes."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def fingerprint(value: Any) -> str:
    """A hash of a JSON-like value; equal values give equal hashes in any key order.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def seed_for(seed: int, *names: str | int) -> int:
    """An independent 63-bit seed for a named purpose.

    >>> seed_for(0, "match") == seed_for(0, "match"), seed_for(0, "match") == seed_for(1, "match")
    (True, False)
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
