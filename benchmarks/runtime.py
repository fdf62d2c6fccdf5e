"""Run time of the method plus against CAPro as published, stage by stage, in one run.

    python benchmarks/runtime.py --data queryweb32

Preset small or small-multi on all rows, frozen EfficientNet-Lite0 at 128 px, each method in a store of its own
that is made anew. Seconds mean little on a busy machine; the ratio is of two runs one after the other.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from capro.stages import PLAN
from variants import PRESETS, arguments, bench_of

METHODS = ("paper", "plus")
SHARED = ("scan", "classes", "pixels", "features")  # not the method's


def seconds_of(name: str, method: str, overrides: list[str]) -> dict[str, float]:
    """Seconds of each stage of a run to its end."""
    with tempfile.TemporaryDirectory() as folder:
        bench = bench_of(name, Path(folder), [*overrides, f"method={method}"])
        run = bench.run_of("runtime", method, [], 0)
        found = {}
        for stage in PLAN.of(run.settings):
            begin = time.monotonic()
            PLAN.do(run, stage.name, watch=bench.watch)
            found[stage.name] = time.monotonic() - begin
    return found


def main() -> None:
    args = arguments(__doc__, data=[name for name in PRESETS if name != "demo"], seeds=1).parse_args()
    found = {method: seconds_of(args.data, method, args.set) for method in METHODS}
    stages = list(dict.fromkeys(stage for times in found.values() for stage in times))
    print(f"| {args.data}, seconds | " + " | ".join(METHODS) + " |\n|---|---|---|")
    for stage in stages:
        print(f"| {stage} | " + " | ".join(f"{found[m].get(stage, 0):.1f}" for m in METHODS) + " |")
    for label, left_out in (("all", ()), ("all but " + ", ".join(SHARED), SHARED)):
        sums = [sum(t for name, t in found[m].items() if name not in left_out) for m in METHODS]
        print(f"| {label} | {sums[0]:.1f} | {sums[1]:.1f} |")
        print(f"{label}: plus takes {sums[1] / sums[0]:.2f} of the paper's time")


if __name__ == "__main__":
    main()
