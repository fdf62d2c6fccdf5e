"""Apply: `capro run` goes on with the decisions, in a process of its own, while the pages stay open."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Work = Callable[[Path], Iterator[str]]


class ApplyError(Exception):
    """The run could not go on; the text says why."""


def go_on(path: Path) -> Iterator[str]:
    """Do the stages that are no longer fresh; yields lines of progress."""
    command = [sys.executable, "-m", "capro", "run", "--run", str(path)]
    last = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            if line.strip():
                last = line.strip() if not line.startswith("hint:") else last
                if not line.startswith("capro "):  # what one may do next, in a terminal
                    yield line.strip()
    if process.returncode:
        raise ApplyError(last or f"capro run ended with {process.returncode}")


class Apply:
    """At most one run at a time.

    Args:
        work: Does the stages, yields lines.
        done: Called after it.
    """

    def __init__(self, path: Path, done: Callable[[], None], work: Work = go_on) -> None:
        self._path, self._done, self._work = path, done, work
        self._lock = threading.Lock()
        self.state: dict[str, Any] = {"running": False, "line": "", "error": ""}

    def start(self) -> bool:
        """Begin; False where it is running already."""
        with self._lock:
            if self.state["running"]:
                return False
            self.state = {"running": True, "line": "starting", "error": ""}
        threading.Thread(target=self._go, daemon=True).start()
        return True

    def _go(self) -> None:
        error = ""
        try:
            for line in self._work(self._path):
                self.state = {"running": True, "line": line, "error": ""}
            self.state = {"running": True, "line": "reading the new verdicts", "error": ""}
            self._done()
        except Exception as problem:  # shown on the page: a thread has nobody else to report to
            error = str(problem) or type(problem).__name__
        self.state = {"running": False, "line": "" if error else "done", "error": error}
