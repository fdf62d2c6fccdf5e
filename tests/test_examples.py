"""The notebook runs from top to bottom: its code cells, in order, on less data."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from capro.stages import classes, embed, match
from tests.made_up import HashedWords

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "quickstart.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for module in (classes, embed, match):
        monkeypatch.setattr(module, "load_text_encoder", lambda *_, **__: HashedWords())
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    assert sources[0] == "QUICK = False"
    assert all(cell["outputs"] == [] for cell in cells)  # nothing stale is shipped
    names: dict[str, Any] = {}
    values = [run_cell(source, names) for source in ["QUICK = True", *sources[1:]]]
    assert set(values[2]) == {"vanilla", "capro"}
    assert values[3].sum() == 84
    assert "dropped.csv" in values[5]
    assert values[-1] is True
    assert " -> " in capsys.readouterr().out
