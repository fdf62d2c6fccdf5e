"""Anchor purity by enhancer: the share of anchors whose web label is true.

    python benchmarks/anchors.py                      queryweb32 and shopweb64
    python benchmarks/anchors.py --data shopweb64

`train_truth` only measures here. Random anchors are averaged over ten draws. Rows with +c add our
contrast (match.contrast=1) to the paper's distance.
"""

from __future__ import annotations

import argparse

import numpy as np

from capro.evaluate.truth import purity
from frozen import Bench

TOPS = (20, 50, 80)
METHODS = ("random", "none", "knn", "reciprocal", "none+c", "knn+c", "reciprocal+c")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["queryweb32", "shopweb64"])
    parser.add_argument("--classes", action="store_true", help="print every class at K = 50")
    args = parser.parse_args()
    for name in args.data:
        bench = Bench(name)
        print(f"\n{name}: {len(bench.training.positions)} samples, k = {bench.settings.match.k}")
        groups = {"all": np.ones(len(bench.training.classes), dtype=bool)}
        if bench.ambiguous.any():
            groups["ambiguous"] = bench.ambiguous
        print(f"{'anchors by':<14}" + "".join(f"{f'K={k} {g}':>18}" for g in groups for k in TOPS))
        by_class = {}
        for method in METHODS:
            cells = {}
            for top in TOPS:
                values = [
                    measured(bench, method, top, seed) for seed in range(10 if method == "random" else 1)
                ]
                cells[top] = np.nanmean(values, axis=0)  # (C,)
            by_class[method] = cells[50]
            row = "".join(f"{np.nanmean(cells[k][g]):>18.3f}" for g in groups.values() for k in TOPS)
            print(f"{method:<14}{row}")
        if args.classes or name == "shopweb64":
            print("\nby class, K = 50:")
            for number, label in enumerate(bench.training.classes):
                row = "  ".join(f"{method} {by_class[method][number]:.2f}" for method in METHODS)
                print(f"  {label:<16}{row}")


def measured(bench: Bench, method: str, top: int, seed: int) -> np.ndarray:
    """Purity of each class."""
    enhancer = method.removesuffix("+c")
    anchors = bench.anchors(
        seed=seed, top_k=top, mode="random" if method == "random" else "text",
        enhancer="none" if method == "random" else enhancer,
        contrast=1.0 if method.endswith("+c") else 0.0,
    )  # fmt: skip
    return purity(anchors.sample, anchors.label, bench.member)


if __name__ == "__main__":
    main()
