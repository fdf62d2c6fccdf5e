"""Progress in lines."""

from __future__ import annotations

import sys

import pytest

from capro.cli.live_view import LiveView
from capro.cli.program import live
from capro.run import processes, progress
from capro.run.progress import Figures, Lines


def test_figures_as_one_line() -> None:
    assert str(Figures(0, 2, 0.1, {"loss": 1.25}, [])) == "epoch 1/2 loss 1.250"
    with progress.silent("x", None) as step:
        step(1, figures=None)


@pytest.mark.parametrize(("kind", "there"), [("xterm", True), ("dumb", False)])
def test_lines_where_nothing_can_be_redrawn(monkeypatch: pytest.MonkeyPatch, kind: str, there: bool) -> None:
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(live("capro run"), LiveView if there else Lines)
    monkeypatch.setattr(processes, "rank", lambda: 1)
    assert isinstance(live("capro run"), Lines)
    monkeypatch.undo()
    assert isinstance(live("capro run"), Lines)  # pytest's stderr is no terminal
