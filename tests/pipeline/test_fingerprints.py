"""Fingerprints and seeds."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from capro.pipeline.checksums import fingerprint, seed_for

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_fingerprint_ignores_key_order_only(value: object) -> None:
    again = json.loads(json.dumps(value))
    assert fingerprint(value) == fingerprint(again)
    assert fingerprint([value]) != fingerprint([value, 0])


def test_seeds_differ_by_purpose() -> None:
    seeds = {seed_for(seed, name) for seed in range(20) for name in ("match", "train", "views")}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)
