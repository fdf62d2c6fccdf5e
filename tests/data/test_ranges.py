"""Ranges of a local file: its bytes, wherever one reads; small members that follow each other take few calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capro.data.image_bytes import FAR, NEAR, open_ranges

CONTENT = bytes(os.urandom(3 * NEAR)) * 30


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranges") / "file"
    path.write_bytes(CONTENT)
    return path


@given(st.lists(st.tuples(st.integers(0, len(CONTENT) + 10), st.integers(0, 2 * NEAR)), max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_bytes_are_those_of_the_file(file: Path, asked: list[tuple[int, int]]) -> None:
    with open_ranges(file) as ranges:
        assert ranges.length == len(CONTENT)
        for at, size in asked:
            assert ranges.read(size, at) == CONTENT[at : at + size]


@pytest.mark.parametrize(("step", "most"), [(512, 8), (200_000, 8)])
def test_what_follows_is_read_ahead_and_what_is_far_is_not(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: int, most: int
) -> None:
    sizes: list[int] = []
    read = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return read(descriptor, size, at)

    monkeypatch.setattr(os, "pread", counted)
    with open_ranges(file) as ranges:
        for at in range(0, len(CONTENT), step):
            ranges.read(512, at)
    assert len(sizes) <= most
    assert max(sizes) <= (FAR if step == 512 else 2 * NEAR)
