"""The command line of the soak test: runs attacks, prints the table, ends non-zero on any failure."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"})

from soak.runner import ATTACKS, soak, table


def main() -> int:
    """Parse, attack, print."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=170, help="for all attacks together")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    parser.add_argument(
        "--only", choices=sorted(ATTACKS), action="append", help="this attack; may be repeated"
    )
    parser.add_argument("--at", type=int, help="one case of the attack, by its number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at once")
    parser.add_argument("--failures", type=Path, default=Path("soak-failures"), help="where failing cases go")
    given = parser.parse_args()
    tallies = soak(
        given.only or list(ATTACKS),
        minutes=given.minutes,
        seed=given.seed,
        jobs=given.jobs,
        failures=given.failures,
        at=given.at,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(table(tallies, given.seed))
    for line in (line for tally in tallies for line in tally.failures):
        print(line)
    return int(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
