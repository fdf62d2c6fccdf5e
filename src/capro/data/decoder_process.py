"""Processes that decode suspicious images (``capro.data.images``) and can be ended; the program that they run.

They are started when they are first needed, one for each thread that waits, and used again. A decoder that takes
too long, breaks down or takes too much memory ends alone; the next image gets another one. A request is a line of
JSON and the image's bytes, the answer a line of JSON and the pixels: nothing that a decoder sends is unpickled, and
no module of the user's program is imported there, which multiprocessing and pools built on it would do.
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
from dataclasses import asdict
from typing import Any

from capro.config import ScanSettings

PROGRAM = [sys.executable, "-P", "-m", "capro.data.decoder_process"]
MEMORY = 2_000_000_000  # bytes of address space for the process ...
PIXEL_MEMORY = 64  # ... and for each pixel that is allowed: a float grey takes this much on its way to RGB
_lock = threading.Lock()
_idle: list[subprocess.Popen[bytes]] = []
os.register_at_fork(after_in_child=_idle.clear)  # they belong to the process that started them


class DecoderEnded(Exception):
    """The decoder ended before it answered; ``too_slow`` where it used more CPU time than it may."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the decoder ended with {signal.Signals(-status).name if status < 0 else status}")
        self.too_slow = status == -signal.SIGPROF


def ask(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """The answer to a request about an image's bytes, and the pixels; raises ``DecoderEnded``."""
    try:
        return _ask_once(request, data)
    except DecoderEnded as ended:
        if ended.too_slow:
            raise
    # it may have ended for another reason, such as memory that other programs took
    return _ask_once(request, data)


def _ask_once(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    process = _idle_or_new()
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
    except BaseException:  # Ctrl-C within a request: the rest of the answer must reach nobody
        process.kill()
        _end(process)
        raise
    with _lock:
        _idle.append(process)
    return answer, pixels


def _idle_or_new() -> subprocess.Popen[bytes]:
    with _lock:
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
    """Close a process's pipes and wait for it; returns its exit status."""
    with contextlib.suppress(OSError), process:
        pass
    return process.wait()


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle[-1].kill()
        _end(_idle.pop())


def main() -> None:
    """The decoder's side: answer until the other side closes the pipe.

    The kernel ends the process when an image takes more CPU time than it may, also within a decoder that never
    returns to Python.
    """
    import resource  # Unix only, and only this side needs it

    from capro.data.images import ImageProblem, decode_here

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request["bytes"])
        limits = ScanSettings(**request["limits"])
        memory = MEMORY + PIXEL_MEMORY * limits.max_pixels
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, limits.max_seconds)  # SIGPROF ends a process without a handler
        try:
            image, info = decode_here(data, limits, min_side=request["min_side"])
            pixels, answer = image.tobytes(), {"size": image.size, "info": asdict(info)}
        except ImageProblem as problem:
            pixels, answer = b"", {"reason": problem.reason, "detail": problem.detail}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer | {"bytes": len(pixels)}).encode() + b"\n" + pixels)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
