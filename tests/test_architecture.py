"""The drawing in docs/architecture.md names the packages that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "capro"


def test_the_drawing_names_every_package_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    drawing = re.search(r"```text\nsrc/capro/\n(.*?)```", page, re.DOTALL)
    assert drawing
    drawn = re.findall(r"^  (\w+)/", drawing[1], re.MULTILINE)
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"presets"}
    assert sorted(drawn) == sorted(packages)
