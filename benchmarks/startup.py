"""How long commands take before they do anything, beside `import pandas`.

`--help`, and the commands that need no torch, on a scanned folder of six small pictures: `export` says that there
are no verdicts yet, the others do the little there is. Each is timed in turn with the import in one run, the best
of each counts, and the ratio is compared with a bound: a library that is imported too early is seen at once.

    python benchmarks/startup.py           prints the ratios, exits with 1 if one is above its bound
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 15
IMPORT = [sys.executable, "-c", "import pandas"]
CAPRO = [sys.executable, "-m", "capro"]
BOUNDS = {
    "--help": 1.5,
    "scan --help": 3.0,
    "scan --run RUN": 3.0,
    "export RUN --out NEW": 3.0,
    "doctor RUN": 3.0,
    "report RUN": 3.0,
    "review RUN --export NEW.csv": 3.0,
}


def spent(command: list[str], codes: tuple[int, ...] = (0,)) -> float:
    """Processor time of a child: unlike the clock's it hardly feels what else is running."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in codes:
        raise SystemExit(f"{command}: exit code {done.returncode}: {done.stderr}")
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def make_run(folder: Path) -> Path:
    """A scanned folder of six pictures."""
    from PIL import Image

    for number in range(6):
        path = folder / "data" / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (number * 40, 0, 0)).save(path)
    run = folder / "run"
    spent([*CAPRO, "scan", str(folder / "data"), "--run", str(run), "--without-texts"])
    return run


def main() -> int:
    """Print the ratios; 1 if one is above its bound."""
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        run = make_run(Path(temporary))
        for words, bound in BOUNDS.items():
            times = []
            for number in range(ROUNDS):
                new = run.with_name(f"{words.split()[0]}-{number}")
                named = [word.replace("RUN", str(run)).replace("NEW", str(new)) for word in words.split()]
                times.append((spent([*CAPRO, *named], (0, 2)), spent(IMPORT)))
            ours, pandas = (min(column) for column in zip(*times, strict=True))
            failed |= ours > bound * pandas
            print(
                f"{'FAIL' if ours > bound * pandas else 'ok  '} capro {words}: {1000 * ours:.0f} ms, "
                f"{ours / pandas:.2f} x the {1000 * pandas:.0f} ms of `import pandas` (bound {bound})",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
