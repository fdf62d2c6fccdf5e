"""Processes that decode suspicious images (``capro.data.images``) and can be ended.

They are started when they are first needed, one for each thread that waits, and used again. A decoder that takes
too long, breaks down or takes too much memory ends alone; the next image gets another one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

PROGRAM = [sys.executable, "-P", "-m", "capro.data.decoder_program"]
_lock = threading.Lock()
_idle: list[subprocess.Popen[bytes]] = []
_owner = 0  # the process that started them: one that forks from it has none


class DecoderEnded(Exception):
    """The decoder ended before it answered; ``too_slow`` where its time was over."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the decoder ended with {signal.Signals(-status).name if status < 0 else status}")
        self.too_slow = status == -signal.SIGPROF


def ask(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """The answer to a request about an image's bytes; raises ``DecoderEnded``."""
    try:
        return _ask_once(request, data)
    except DecoderEnded as ended:
        if ended.too_slow:
            raise
    return _ask_once(
        request, data
    )  # it may have ended because of something else, such as the memory of others


def _ask_once(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    process = _take()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request | {"bytes": len(data)}).encode() + b"\n" + data)
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        pixels = process.stdout.read(answer["bytes"])
        if len(pixels) < answer["bytes"]:
            raise EOFError
    except (OSError, ValueError, EOFError):
        raise DecoderEnded(_end(process)) from None
    except BaseException:  # Ctrl-C within a request: what is in the pipe belongs to nobody
        process.kill()
        _end(process)
        raise
    with _lock:
        _idle.append(process)
    return answer, pixels


def _take() -> subprocess.Popen[bytes]:
    global _owner  # noqa: PLW0603 - one set of processes for the program
    with _lock:
        if _owner != os.getpid():
            _idle.clear()
            _owner = os.getpid()
        if _idle:
            return _idle.pop()
    return subprocess.Popen(
        PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def _end(process: subprocess.Popen[bytes]) -> int:
    """Close a process's pipes and wait for it: its exit status."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    return process.wait()


@atexit.register
def _end_all() -> None:
    if _owner == os.getpid():
        while _idle:
            _idle[-1].kill()
            _end(_idle.pop())
