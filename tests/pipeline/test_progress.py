"""Progress in lines."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
import time

import pytest

from capro.cli.live_view import LiveView
from capro.cli.program import live
from capro.pipeline import progress, ranks
from capro.pipeline.progress import Figures, Lines


def test_figures_as_one_line() -> None:
    assert str(Figures(0, 2, 0.1, {"loss": 1.25}, [])) == "epoch 1/2 loss 1.250"
    with progress.silent("x", None) as step:
        step(1, figures=None)


@pytest.mark.parametrize(("kind", "there"), [("xterm", True), ("dumb", False)])
def test_lines_where_nothing_can_be_redrawn(monkeypatch: pytest.MonkeyPatch, kind: str, there: bool) -> None:
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(live("capro run"), LiveView if there else Lines)
    monkeypatch.setattr(ranks, "process_rank", lambda: 1)
    assert isinstance(live("capro run"), Lines)
    monkeypatch.undo()
    assert isinstance(live("capro run"), Lines)  # pytest's stderr is no terminal


def test_a_pipe_gets_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    now = [0.0]
    with progress.regular_lines("encoding texts", 100, write=said.append, clock=lambda: now[0]) as step:
        for _ in range(10):
            now[0] += 7
            step(5, figures=Figures(0, 2, 0.1, {"loss": 1.25}, []))
    assert said == [
        "encoding texts: 25 of 100, 0.71/s, 1 min 45 s left, epoch 1/2 loss 1.250",
        "encoding texts: 50 of 100, 0.71/s, 1 min 10 s left, epoch 1/2 loss 1.250",
    ]
    assert capsys.readouterr().err == ""


def test_a_pipe_gets_a_line_where_no_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    said: list[str] = []
    before = threading.active_count()
    with progress.regular_lines("graph (reciprocal)", None, write=said.append):
        until = time.monotonic() + 10
        while len(said) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert said[:2] == ["graph (reciprocal): for 0 s"] * 2
    assert threading.active_count() == before
    with pytest.raises(KeyError), progress.regular_lines("x", 3, write=said.append):
        raise KeyError
    assert threading.active_count() == before


def test_a_pipe_gets_no_time_left_without_a_total(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    now = [0.0]
    with progress.regular_lines("ranking senses", None, write=said.append, clock=lambda: now[0]) as step:
        for _ in range(2):
            now[0] += 40
            step(3)
    assert said == ["ranking senses: 3", "ranking senses: 6, 0.075/s"]
    monkeypatch.setattr(progress, "INTERVAL", 1e-3)
    monkeypatch.setattr(ranks, "process_rank", lambda: 1)
    with progress.terminal("ranking senses", 6) as step:
        time.sleep(5e-3)
        step(3)
    assert capsys.readouterr().err == ""  # of several ranks one shows it


@pytest.mark.parametrize(("total", "left"), [(None, False), (1000, True)])
def test_the_bar_of_a_terminal_has_a_time_left_if_there_is_one(total: int | None, left: bool) -> None:
    code = (
        "import time; from capro.pipeline.progress import terminal\n"
        f"with terminal('working', {total}) as step:\n"
        "    for _ in range(8): step(5); time.sleep(0.1)"
    )
    pid, end = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        os.execvpe(
            sys.executable, [sys.executable, "-c", code], {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        )
    output = b""
    with contextlib.suppress(OSError):  # the other side has closed it
        while part := os.read(end, 65536):
            output += part
    os.waitpid(pid, 0)
    assert "working" in output.decode()
    assert "/s" in output.decode()
    assert ("left" in output.decode()) == left
