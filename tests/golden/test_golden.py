"""The results of tiny runs are those on record, to rounding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import CASES, HERE, record

pytestmark = pytest.mark.slow

NUMBER = re.compile(r"\d+\.\d+")
CLOSE = 5e-3  # another processor rounds otherwise, and training carries it on


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, tmp_path: Path) -> None:
    wanted = json.loads((HERE / f"{case}.json").read_text("utf-8"))
    found = json.loads(json.dumps(record(case, tmp_path)))
    assert [*found] == [*wanted]
    assert not list(differences(found, wanted, case))


def differences(found: Any, wanted: Any, place: str) -> Any:
    """Places where two documents differ by more than rounding."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in {**wanted, **found}:
            if key in wanted and key in found:
                yield from differences(found[key], wanted[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: only in one"
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(wanted, float) and isinstance(found, float | int):
        if abs(found - wanted) > CLOSE:
            yield f"{place}: {found}, on record {wanted}"
    elif isinstance(wanted, str) and isinstance(found, str):
        yield from _texts(found, wanted, place)
    elif found != wanted:
        yield f"{place}: {found!r}, on record {wanted!r}"


def _texts(found: str, wanted: str, place: str) -> Any:
    """Sentences may name figures that are rounded the other way."""
    same = NUMBER.sub("#", found) == NUMBER.sub("#", wanted)
    pairs = zip(NUMBER.findall(found), NUMBER.findall(wanted), strict=False)
    if not same or any(abs(float(one) - float(other)) > 0.0101 for one, other in pairs):
        yield f"{place}: {found!r}, on record {wanted!r}"
