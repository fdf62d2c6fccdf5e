"""The drawing in docs/architecture.md is the tree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "capro"


def test_the_drawing_names_every_module_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    drawing = re.search(r"```text\nsrc/capro/\n(.*?)```", page, re.DOTALL)
    assert drawing
    drawn: set[str] = set()
    package = ""
    for line in drawing[1].splitlines():
        found = re.match(r"  (\w+)/", line)
        package = found[1] if found else package
        words = re.findall(r"[a-z_0-9]+", line.partition("/")[2] if found else line)
        drawn |= {f"{package}/{word}" for word in words} | set(re.findall(r"(\w+)\.py", line))
    modules = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if not path.name.startswith("__")}
    names = {f"{path.parts[0]}/{path.stem}" if len(path.parts) > 1 else path.stem for path in modules}
    assert names <= drawn, f"not in the drawing: {sorted(names - drawn)}"
    gone = {
        word.split("/")[1]
        for line in drawing[1].splitlines()
        if " · " in line
        for word in re.findall(r"(?:^|· |: |/ )([a-z_0-9]+)(?= ·|$|,)", line)
        for word in [f"x/{word}"]
    }
    stems = {path.stem for path in modules} | {path.name for path in SOURCE.rglob("*") if path.is_dir()}
    assert gone <= stems, f"only in the drawing: {sorted(gone - stems)}"
