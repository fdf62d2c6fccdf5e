"""How long `capro demo` takes on a quiet machine and on a busy one, and what it gains.

    python benchmarks/demo.py [--seeds 3]

The command runs from the pictures to the report once for each seed, then once more beside two processes that keep two
cores busy. Bounds (exit code 1): 90 s and 180 s of CPU time on two quiet cores, and at most three times as long
beside the two. Run it with all else stopped.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS, CPU, BUSY = 90.0, 180.0, 3.0
SPIN = [sys.executable, "-c", "while True: pass"]


def demo(folder: Path, seed: int) -> tuple[float, float]:
    """Seconds and seconds of CPU time."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "capro", "demo", "--run", str(folder / "run"), "--set", f"seed={seed}"]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, used


def gained(folder: Path) -> tuple[float, float]:
    """Top-1 accuracy of vanilla and of capro."""
    found = json.loads((folder / "run" / "evaluate" / "stage.json").read_text())["result"]
    return found["vanilla"]["top1"], found["capro"]["top1"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    times, gains = [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            seconds, used = demo(Path(folder), seed)
            vanilla, capro = gained(Path(folder))
        times.append((seconds, used))
        gains.append(100 * (capro - vanilla))
        print(
            f"seed {seed}: {seconds:.0f} s, {used:.0f} s of CPU; vanilla {100 * vanilla:.1f}, capro {100 * capro:.1f}, "
            f"gain {gains[-1]:.1f}",
            flush=True,
        )
    others = [subprocess.Popen(SPIN) for _ in range(2)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            busy, _ = demo(Path(folder), 0)
    finally:
        for other in others:
            other.kill()
    slowest, most = (max(column) for column in zip(*times, strict=True))
    ratio = busy / times[0][0]
    found = [
        (slowest <= SECONDS, f"the slowest takes {slowest:.0f} s (at most {SECONDS:.0f})"),
        (most <= CPU, f"the most CPU time is {most:.0f} s (at most {CPU:.0f})"),
        (
            ratio <= BUSY,
            f"beside two busy processes {busy:.0f} s, {ratio:.2f} times as long (at most {BUSY:g})",
        ),
    ]
    for kept, text in found:
        print(f"{'ok  ' if kept else 'FAIL'} {text}")
    print(f"mean gain {sum(gains) / len(gains):.1f} points over {seeds} seeds")
    return int(not all(kept for kept, _ in found))


if __name__ == "__main__":
    sys.exit(main())
