"""The places where the paper can be read in two ways, side by side (docs/paper.md, Readings).

    python benchmarks/readings.py                          queryweb32, three seeds, stores below runs/
    python benchmarks/readings.py --runs /work/bench       with the stores of earlier benchmarks
    python benchmarks/readings.py --data cococap64         several labels

Every row is a run with the paper's settings on the cached features of a frozen encoder (`capro.bench`), to its last
epoch. Printed are the test figures, the share of anchors and of cleaned labels that are true, and differences paired by
seed. `train_truth` only measures. With a frozen encoder L_prj reaches projector, reconstructor and auxiliary classifier
alone; `--set net.mode=full` has the encoder learn, which takes hours.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from capro.bench import Bench
from capro.bench.grids import PAPER, GridRow
from capro.bench.runner import METRICS
from capro.bench.store import only_one
from capro.bench.summary import Measured, TableResult, results_markdown
from capro.results.truth import on_truth
from variants import PRESETS, arguments, bench_of, truth_of

PUBLISHED = (*PAPER, "net.frozen_views=3")  # whatever the preset of the dataset
ALGORITHM = "L_prj in step 2, a sample not in its own R"  # the defaults
READINGS = {
    ALGORITHM: ("train.lambda_prj=1", "match.own_neighbour=false"),
    "L_prj in step 1 alone": ("train.lambda_prj=0", "match.own_neighbour=false"),
    "a sample in its own R": ("train.lambda_prj=1", "match.own_neighbour=true"),
    "both": ("train.lambda_prj=0", "match.own_neighbour=true"),
}
ON_TRUTH = {"anchors true": "anchor_purity", "cleaned labels true": "cleaned_label_accuracy", "kept": "kept"}


def measured(bench: Bench, truth: Path) -> list[Measured]:
    """The figures of every reading and seed of a bench."""
    rows = [Measured(label) for label in READINGS]
    for seed in bench.seeds:
        for row in rows:
            bench.watch.say(f"{row.label}, seed {seed}")
            run = bench.run_of("readings", row.label, (*PUBLISHED, *READINGS[row.label]), seed)
            figures = bench.measure(run, GridRow(row.label))
            known = on_truth(run, truth)
            row.figures[seed] = {**figures, **{name: known[key] for name, key in ON_TRUTH.items()}}
    return rows


def main() -> None:
    args = arguments(__doc__, data=[name for name in PRESETS if name != "demo"], seeds=3).parse_args()
    bench = bench_of(args.data, args.runs, args.set, seeds=args.seeds)
    with only_one(bench.folder):
        rows = measured(bench, truth_of(bench))
    kind = "single" if "top1" in rows[0].figures[0] else "multi"
    result = TableResult(
        "readings", f"{args.data}: two readings of the paper, twice", rows, (*METRICS[kind], *ON_TRUTH), ALGORITHM,
        bench.seeds, command=shlex.join(["python", "benchmarks/readings.py", *sys.argv[1:]]),
    )  # fmt: skip
    print(results_markdown(result))


if __name__ == "__main__":
    main()
