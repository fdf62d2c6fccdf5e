"""Choose settings on held-out training data: the test set and the truth are never read.

    python benchmarks/choose.py --data queryweb32 --folds 3 --vary train.gamma=0.5,0.6 ...

Training samples are held out with their web labels and stand in for the test set, which leaves the manifest.
Every combination of the values is a run to its end; a row is `vanilla` (step 1 alone), or CAPro.

Several labels: a tenth is held out, at random. One label: a third of a pool whose web labels are mostly true,
since those of the others are wrong in the same way as those trained on, and a model that believes the wrong
sense would look good. The pool is `agree`, samples whose own text is nearer to their class's text than to any
other's, or `fit`, the 75 of each class whose texts fit best (purer, and too much like the anchors: heads
trained on anchors alone look nearly as good as the whole method).

Held-out samples lack the labels that all samples lack, so they cannot show which model copes with that.
`--thin` takes more labels away, from those trained on alone: a model that copes with it looks better.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from capro.bench import Bench
from capro.bench.runner import METRICS
from capro.bench.store import only_one
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import ANCHORS, CLASS_TEXTS, SCORES, TEXTS
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.results.metrics import summary
from capro.stages import PLAN
from capro.train.setup import training_set
from variants import PRESETS, arguments, base_of, bench_of, plan_on, step3_after_step1

FITTING = 75  # samples of each class in the pool `fit`


def pool_of(bench: Bench, kind: str) -> np.ndarray:
    """Training rows that may be held out, where samples have one label."""
    run = bench.run_of("choose", kind, [f"match.top_k={FITTING}"] if kind == "fit" else [], 0)
    PLAN.do(run, "scan", "embed", watch=bench.watch)
    if kind == "fit":
        PLAN.do(run, "match", watch=bench.watch)
        return np.unique(run.read(ANCHORS)["row"].to_numpy())
    texts = np.asarray(run.read(TEXTS))
    nearest = (texts @ np.asarray(run.read(CLASS_TEXTS)).T).argmax(axis=1)
    return np.flatnonzero(texts.any(axis=1) & (nearest == training_set(run).labels.numpy()))


def held_out(base: Run, pool: np.ndarray | None, fold: int, thin: float = 0.0) -> Plan:
    """The plan with one part of the training samples as its test split.

    Args:
        base: A run on all rows.
        pool: Training rows of which a third is held out; None: a tenth of all.
        fold: Which third or tenth.
        thin: Share of the labels trained on that are taken away; several labels only.
    """
    manifest = manifest_of(base)
    train, labels = manifest.split("train"), manifest.samples["labels"].tolist()
    parts, candidates = (10, np.arange(len(train))) if pool is None else (3, pool)
    size = len(candidates) // parts
    held = np.random.default_rng(0).permutation(candidates)[fold * size : (fold + 1) * size]
    split = manifest.samples["split"].to_numpy(dtype=object).copy()
    keep = split == "train"
    split[train[held]] = "test"
    rng = np.random.default_rng(fold)
    for row in np.flatnonzero(split == "train") if thin else ():
        labels[row] = tuple(name for name in labels[row] if rng.random() >= thin)
    return plan_on(base, keep, split=split.tolist(), labels=labels)


def figures_of(
    bench: Bench, plan: Plan, name: str, overrides: Sequence[str], seed: int, rows: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Figures of one combination on the held-out samples."""
    run = bench.run_of("choose", "-".join([name, *overrides]), overrides, seed)
    whole = plan if "CAPro" in rows else step3_after_step1(plan)
    whole.do(run, *whole.all_names(run), watch=bench.watch)
    manifest = manifest_of(run)
    labels = known_labels(manifest, manifest.split("test"), training_set(run).classes)
    return {row: summary(np.array(run.read(SCORES[row.lower()])), labels) for row in rows}


def main() -> None:
    parser = arguments(__doc__, data=[name for name in PRESETS if name != "demo"], seeds=1)
    parser.add_argument("--folds", type=int, default=1, choices=[1, 2, 3], help="held out in turn")
    parser.add_argument("--pool", default="agree", choices=["agree", "fit"], help="one label only")
    parser.add_argument("--thin", type=float, default=0.0, help="several labels: share to take away")
    parser.add_argument("--rows", nargs="+", default=["vanilla", "CAPro"], choices=["vanilla", "CAPro"])
    parser.add_argument("--vary", nargs="+", default=[], help="name=value,value,...")
    a = parser.parse_args()
    several = PRESETS[a.data] == "small-multi"
    if a.thin and not several:
        parser.error("--thin needs several labels: cococap64, albumtags96")
    bench = bench_of(a.data, a.runs, a.set)
    metrics = METRICS["multi"] if several else ("top1", "class-top1")
    axes = [
        [f"{name}={value}" for value in values.split(",")] for name, values in (v.split("=") for v in a.vary)
    ]
    with only_one(bench.folder):
        pool = None if several else pool_of(bench, a.pool)
        for overrides in itertools.product(*axes):
            begin, results = time.monotonic(), []
            base = base_of(bench, overrides)
            for fold in range(a.folds):
                plan, name = held_out(base, pool, fold, a.thin), f"{a.pool}-{fold}-{a.thin}"
                results += [
                    figures_of(bench, plan, name, overrides, fold + a.folds * seed, a.rows)
                    for seed in range(a.seeds)
                ]
            for row in a.rows:
                means = [f"{m} {100 * np.mean([found[row][m] for found in results]):.1f}" for m in metrics]
                took = f"({time.monotonic() - begin:.0f} s)"
                print(f"{row:<8}  {'  '.join(means)}   {' '.join(overrides)}  {took}", flush=True)


if __name__ == "__main__":
    main()
