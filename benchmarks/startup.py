"""How long `capro --help` and `capro scan --help` take, beside `import pandas`.

Both are timed in turn with the import in one run, the best of each counts, and the ratio is compared with a
bound: a library that the command line imports too early is seen at once.

    python benchmarks/startup.py           prints the ratios, exits with 1 if one is above its bound
"""

from __future__ import annotations

import resource
import subprocess
import sys

ROUNDS = 15
IMPORT = [sys.executable, "-c", "import pandas"]
CAPRO = [sys.executable, "-m", "capro"]
BOUNDS = {"capro --help": 1.5, "capro scan --help": 3.0}


def spent(command: list[str]) -> float:
    """Processor time of a child: unlike the clock's it hardly feels what else is running."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def main() -> int:
    """Print the ratios; 1 if one is above its bound."""
    failed = False
    for name, bound in BOUNDS.items():
        command = [*CAPRO, *name.split()[1:]]
        times = [(spent(command), spent(IMPORT)) for _ in range(ROUNDS)]
        ours, pandas = (min(column) for column in zip(*times, strict=True))
        failed |= ours > bound * pandas
        print(
            f"{name}: {1000 * ours:.0f} ms, {ours / pandas:.2f} x the {1000 * pandas:.0f} ms of "
            f"`import pandas` (bound {bound})"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
