"""How this process was started: alone, or as one of several by `torchrun` or `accelerate launch`.

Read from the launcher's environment, so that nothing heavy is imported to know who may print.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def count() -> int:
    """Number of processes that were started together."""
    if not all(os.environ.get(name, "").isdigit() for name in _NAMES):
        return 1
    return int(os.environ["WORLD_SIZE"])


def rank() -> int:
    """This process's number among them."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def is_main() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


def leave(code: int) -> NoReturn:
    """End this process, which is one of several, without what Python does at its end.

    A thread of the process group (Gloo) may still hold a tensor of the last exchange. When it lets go of it while
    the interpreter ends, it waits for a lock that is gone, and the process aborts though its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
