"""Choose settings on held-out training data: the test set and the truth are never read.

    python benchmarks/choose.py --data queryweb32 --folds 3 --vary train.text_weight=0,1 ...

Training samples are held out with their web labels (`frozen.HeldOut` says which); the figures are of
them. Every combination of the values is trained; a row is `vanilla` (step 1 alone), or CAPro.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np

from capro import config
from frozen import HeldOut, Trial, preset_for


def held_out(
    bench: HeldOut, overrides: tuple[str, ...], seed: int, rows: list[str]
) -> dict[str, dict[str, float]]:
    """Figures of one combination on the held-out samples."""
    trial = Trial(bench, seed)
    trial.settings = config.update(trial.settings, overrides)
    train = trial.settings.train
    found = {}
    vanilla = trial.web() if "vanilla" in rows or train.start == "web" else None
    if "vanilla" in rows:
        found["vanilla"] = trial.test(vanilla)
    if "CAPro" in rows:
        anchored = bench.anchored(bench.anchors(top_k=trial.settings.match.top_k))
        start = vanilla if train.start == "web" else trial.anchor_heads(anchored, train)
        found["CAPro"] = trial.test(trial.capro(start, anchored, train))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="queryweb32", choices=["queryweb32", "shopweb64", "cococap64"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folds", type=int, default=1, choices=[1, 2, 3], help="held out in turn")
    parser.add_argument("--pool", default="agree", choices=["agree", "fit"], help="one label only")
    parser.add_argument("--thin", type=float, default=0.0, help="several labels: share to take away")
    parser.add_argument("--rows", nargs="+", default=["vanilla", "CAPro"], choices=["vanilla", "CAPro"])
    parser.add_argument("--vary", nargs="+", default=[], help="name=value,value,...")
    a = parser.parse_args()
    benches = [HeldOut(a.data, (), preset_for(a.data), a.pool, fold, a.thin) for fold in range(a.folds)]
    if a.thin and not benches[0].training.multi_label:
        parser.error("--thin needs several labels: cococap64")
    axes = [
        [f"{name}={value}" for value in values.split(",")] for name, values in (v.split("=") for v in a.vary)
    ]
    metrics = ["C-F1", "O-F1", "mAP"] if benches[0].training.multi_label else ["top1", "macro"]
    for overrides in itertools.product(*axes):
        begin = time.monotonic()
        results = [
            held_out(bench, overrides, bench.fold + a.folds * seed, a.rows)
            for bench in benches
            for seed in range(a.seeds)
        ]
        for row in results[0]:
            cells = "".join(
                f"  {name} {100 * np.mean([r[row][name] for r in results]):.1f}" for name in metrics
            )
            print(f"{row:<8}{cells}   {' '.join(overrides)}  ({time.monotonic() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
