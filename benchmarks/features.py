"""Which encoder, picture size and number of cached views: accuracy for time.

    python benchmarks/features.py --data queryweb32
    python benchmarks/features.py --data all --views 1 2 4 --nets lite0 --sizes 128

Each row is a run of preset small or small-multi (method plus) to its end on the same part of the data: some
training and test samples, drawn at random. Figures are of the last epoch on the test samples; `web` is step 1
alone. Pictures per second are of the stage `features`, views counted one by one; run it with all else stopped.
One seed per row: differences below a point mean little.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from capro.bench import Bench
from capro.bench.derived import derived_rows, plan_of_rows
from capro.bench.store import only_one
from capro.data.manifest import Manifest, manifest_of
from capro.pipeline.plan import Plan
from capro.results.comparison import test_split
from capro.results.metrics import summary
from capro.stages import PLAN
from variants import PRESETS, arguments, bench_of

SHOWN = {"single": ("top1",), "multi": ("C-F1", "mAP")}


def part_of(bench: Bench, train: int, test: int) -> Plan:
    """The plan on some training and test samples; features are computed, not taken over."""
    base = bench.run_of("features", "all rows", [], 0)
    PLAN.do(base, "scan", "classes", watch=bench.watch)
    manifest = manifest_of(base)
    keep = np.zeros(len(manifest.samples), dtype=bool)
    rng = np.random.default_rng(0)
    for name, count in (("train", train), ("test", test)):
        keep[rng.permutation(manifest.split(name))[:count]] = True
    rows = derived_rows(manifest, keep)
    return plan_of_rows(rows, {"rows": Manifest(rows).content})


def row(bench: Bench, plan: Plan, net: str, size: int, views: int) -> str:
    """One run to its end, as a line of the table."""
    overrides = [f"net.backbone={net}", f"views.size={size}", f"net.frozen_views={views - 1}"]
    run = bench.run_of("features", f"{net}-{size}-{views}", overrides, 0)
    plan.do(run, "scan", "pixels", watch=bench.watch)
    begin = time.monotonic()
    plan.do(run, "features", watch=bench.watch)
    took = time.monotonic() - begin
    plan.do(run, *plan.all_names(run), watch=bench.watch)
    tested = test_split(run)
    if tested is None:
        raise SystemExit(f"error: {run.path}: no test samples with scores")
    scores, labels = tested.known()
    manifest = manifest_of(run)
    passes = len(manifest.samples) + (views - 1) * len(manifest.split("train"))
    rate = f"{passes / took:.0f}" if took > 1 else "cached"
    found = {name: summary(scores[name], labels) for name in ("vanilla", "capro")}
    figures = [f"{100 * found[name][m]:.1f}" for m in SHOWN[manifest.task] for name in ("vanilla", "capro")]
    return "| " + " | ".join([net, f"{size}", f"{views}", *figures, rate]) + " |"


def main() -> None:
    names = [name for name in PRESETS if name != "demo"]
    parser = arguments(__doc__, data=["all", *names], seeds=1)
    parser.add_argument("--nets", nargs="+", default=["lite0", "lite1", "lite2"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 192, 224])
    parser.add_argument("--views", nargs="+", type=int, default=[1])
    parser.add_argument("--train", type=int, default=2500, help="training samples")
    parser.add_argument("--test", type=int, default=1000, help="test samples")
    args = parser.parse_args()
    for name in names if args.data == "all" else [args.data]:
        bench = bench_of(name, args.runs, args.set)
        with only_one(bench.folder):
            plan = part_of(bench, args.train, args.test)
            metrics = SHOWN["multi" if PRESETS[name] == "small-multi" else "single"]
            heads = [f"{m} {of}" for m in metrics for of in ("web", "plus")]
            print(f"\n{name}: {args.train} training and {args.test} test samples")
            print(" | ".join(["| net", "px", "views", *heads, "pictures/s |"]))
            print("|---" * (4 + len(heads)) + "|", flush=True)
            for net, size, views in itertools.product(args.nets, args.sizes, args.views):
                print(row(bench, plan, net, size, views), flush=True)


if __name__ == "__main__":
    main()
