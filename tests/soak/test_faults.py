"""Faults strike where they are said to."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from capro.pipeline.artefacts import write_text
from capro.pipeline.files import DiskError
from soak.faults import CALLS, Fault, Faults


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CAPRO_FSYNC", "1")
    kept = {name: getattr(os, name) for name in CALLS}
    opened = builtins.open
    yield
    for name, real in kept.items():
        setattr(os, name, real)
    builtins.open = io.open = opened  # type: ignore[assignment]


def test_every_write_of_an_artefact_is_a_moment(tmp_path: Path) -> None:
    faults = Faults(Fault(str(tmp_path)))
    faults.install()
    write_text(tmp_path / "a.txt", "whole")
    assert faults.moments >= 6  # opened, flushed to the disk, renamed: before and after each
    counted = faults.moments
    Path("/dev/null").write_text("elsewhere")
    assert faults.moments == counted


@pytest.mark.parametrize("at", range(1, 7))
def test_a_full_disk_leaves_an_artefact_whole_or_absent(at: int, tmp_path: Path) -> None:
    Faults(Fault(str(tmp_path), "error", at, errno.ENOSPC)).install()
    with pytest.raises(DiskError, match="no space is left"):
        [write_text(tmp_path / f"{number}.txt", "whole") for number in range(9)]
    assert {path.read_text() for path in tmp_path.glob("*.txt")} <= {"whole"}
