"""Commands of capro in processes of their own, which start in a few hundredths of a second.

They are forked from one that has imported everything and done nothing. The text encoder is one without weights.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.faults import Fault, Faults
from tests import tiny

PATIENCE = 120  # seconds after which a command hangs
_context: Any = None


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, negative for a signal, and what it printed."""

    code: int
    out: str
    err: str
    moments: int  # writes that were counted
    hung: bool = False

    @property
    def complained(self) -> bool:
        """Whether it stopped with a message for its user."""
        return self.code == 2 and "error: " in self.err and "hint: " in self.err and not self.crashed

    @property
    def crashed(self) -> bool:
        """Whether it showed a fault of capro's own."""
        return "Traceback" in self.err or "this is a bug" in self.err or self.code == 1


def processes() -> Any:
    """Where processes are forked from; made once."""
    global _context  # noqa: PLW0603 - one server for the program
    if _context is None:
        _context = tiny.processes()
    return _context


class Command:
    """A command that has been started."""

    def __init__(self, words: Sequence[object], fault: Fault | None = None, *, file_limit: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="soak-")
        self.words = [str(word) for word in words]
        self._process = processes().Process(
            target=_work, args=(self.words, fault, self._folder.name, file_limit), daemon=True
        )
        self._process.start()

    def signal_after(self, seconds: float, number: int) -> None:
        """Send a signal after some time, unless it has ended."""
        self._process.join(seconds)
        if self._process.is_alive():
            os.kill(self._process.pid, number)

    def wait(self) -> Ended:
        """How it ended."""
        self._process.join(PATIENCE)
        hung = bool(self._process.is_alive())
        if hung:
            self._process.kill()
            self._process.join()
        here = Path(self._folder.name)
        texts = {name: here / name for name in ("out", "err", "moments")}
        out, err, moments = (
            path.read_text("utf-8", "replace") if path.exists() else "" for path in texts.values()
        )
        self._folder.cleanup()
        return Ended(int(self._process.exitcode or 0), out, err, int(moments or 0), hung)


def run(*words: object, fault: Fault | None = None, file_limit: int = 0) -> Ended:
    """Do a command."""
    return Command(words, fault, file_limit=file_limit).wait()


def timed(*words: object, fault: Fault | None = None) -> tuple[Ended, float]:
    """Do a command; with its seconds."""
    begin = time.monotonic()
    return run(*words, fault=fault), time.monotonic() - begin


def _work(words: list[str], fault: Fault | None, folder: str, file_limit: int) -> None:
    """The process: output to files, faults installed, then the command line as a user's."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    without_weights()
    os.environ["CAPRO_FSYNC"] = "1"  # its moments are attacked too
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    faults = Faults(fault) if fault else None
    if faults:
        faults.install()
    from capro.cli import main

    sys.argv = ["capro", *words]
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if faults and not file_limit:
            counted = os.open(f"{folder}/moments", os.O_WRONLY | os.O_CREAT)
            os.write(counted, str(faults.moments).encode())


def without_weights() -> None:
    """A text encoder that needs no files, wherever a stage asks for one."""
    from capro.stages import classes, embed, match

    for module in (classes, embed, match):
        module.load_text_encoder = lambda *_args, **_options: tiny.WordEncoder()  # type: ignore[attr-defined]
