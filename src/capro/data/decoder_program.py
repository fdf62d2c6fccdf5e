"""The program of a decoder process (``capro.data.decoder_process``): decodes what it is given, one image at a time.

A request is a line of JSON and the image's bytes; the answer a line of JSON and the pixels. The kernel ends the
process when an image takes more CPU time than its limit, also within a decoder that never returns to Python.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

from capro.config import ScanSettings
from capro.data.images import ImageProblem, decode_here

MEMORY = 2_000_000_000  # bytes of address space for the process ...
PIXEL_MEMORY = 64  # ... and for each pixel that is allowed: float greys take this much on their way to RGB


def main() -> None:
    """Answer until the other side closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    while line := sys.stdin.buffer.readline():
        _answer(json.loads(line), sys.stdin.buffer, sys.stdout.buffer)


def _answer(request: dict[str, Any], inward: BinaryIO, out: BinaryIO) -> None:
    data = inward.read(request["bytes"])
    limits = ScanSettings(**request["limits"])
    most = MEMORY + PIXEL_MEMORY * limits.max_pixels
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, limits.max_seconds)  # SIGPROF ends a process that does not handle it
    try:
        image, info = decode_here(data, limits, min_side=request["min_side"])
        pixels, answer = image.tobytes(), {"size": image.size, "info": asdict(info)}
    except ImageProblem as problem:
        pixels, answer = b"", {"reason": problem.reason, "detail": problem.detail}
    signal.setitimer(signal.ITIMER_PROF, 0)
    out.write(json.dumps(answer | {"bytes": len(pixels)}).encode() + b"\n" + pixels)
    out.flush()


if __name__ == "__main__":
    main()
