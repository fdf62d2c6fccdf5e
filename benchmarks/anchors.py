"""Anchor purity by enhancer: the share of anchors whose web label is true.

    python benchmarks/anchors.py                      queryweb32 and shopweb64
    python benchmarks/anchors.py --data shopweb64

`train_truth` only measures here. Random anchors are averaged over ten draws. Rows with +c add our
contrast (match.contrast=1) to the paper's distance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from capro.bench import Bench
from capro.bench.store import only_one
from capro.models.classes import classes_of
from capro.stages import PLAN
from capro.stages.match import purity_by_enhancer
from variants import PRESETS, RUNS, base_of, bench_of, truth_of

TOPS = (20, 50, 80)
DRAWS = 10
ENHANCERS = ("none", "knn", "reciprocal")


def purities(bench: Bench, truth: Path, top: int) -> dict[str, np.ndarray]:
    """Purity of each class with so many anchors per class, by method, (C,)."""
    found: dict[str, list[np.ndarray]] = {}
    for suffix, contrast in (("", 0), ("+c", 1)):
        for seed in range(1 if suffix else DRAWS):
            chosen = (f"match.top_k={top}", f"match.contrast={contrast}")
            run = bench.run_of("anchors", f"K {top}{suffix}", chosen, seed)
            PLAN.do(run, "scan", "embed", watch=bench.watch)
            enhancers = [*([] if suffix else ["random"]), *([] if seed else ENHANCERS)]
            for name, pure in purity_by_enhancer(run, truth, enhancers=enhancers).items():
                found.setdefault(name + suffix, []).append(pure)
    return {name: np.nanmean(draws, axis=0) for name, draws in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["queryweb32", "shopweb64"], choices=[*PRESETS])
    parser.add_argument("--runs", type=Path, default=RUNS, help="where stores and runs are kept")
    parser.add_argument("--classes", action="store_true", help="print every class at K = 50")
    args = parser.parse_args()
    for name in args.data:
        bench = bench_of(name, args.runs)
        with only_one(bench.folder):
            specs = classes_of(base_of(bench))
            by_top = {top: purities(bench, truth_of(bench), top) for top in TOPS}
        print(f"\n{name}: k = {bench.settings.match.k}")
        groups = {"all": np.ones(len(specs), dtype=bool)}
        ambiguous = np.array([bool(spec.ambiguous) for spec in specs])
        if ambiguous.any():
            groups["ambiguous"] = ambiguous
        print(f"{'anchors by':<14}" + "".join(f"{f'K={k} {g}':>18}" for g in groups for k in TOPS))
        for method in by_top[50]:
            cells = [np.nanmean(by_top[k][method][g]) for g in groups.values() for k in TOPS]
            print(f"{method:<14}" + "".join(f"{cell:>18.3f}" for cell in cells))
        if args.classes or name == "shopweb64":
            print("\nby class, K = 50:")
            for number, spec in enumerate(specs):
                row = "  ".join(f"{method} {pure[number]:.2f}" for method, pure in by_top[50].items())
                print(f"  {spec.name:<16}{row}")


if __name__ == "__main__":
    main()
