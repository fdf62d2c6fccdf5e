"""The paper's order with an encoder that learns: vanilla, MoPro, and CAPro with and without its parts.

    python benchmarks/full_training.py                        small ResNet from scratch, 32 px, two seeds
    python benchmarks/full_training.py --net lite0            EfficientNet-Lite0 from its ImageNet weights, 64 px
    python benchmarks/full_training.py --rows Vanilla MoPro   some rows

On queryweb32 (a frozen encoder cannot show what the paper claims for bootstrapping and enhancement). Every row is
the paper's method (`capro.bench.pinned`) under one schedule, all weights learn, the last epoch counts. Step 1 is
done once a seed. It takes hours on two cores: stopped at any time, the same command goes on at its last checkpoint,
and the table of what is there is printed at the end of each row. `train_truth` only measures.
"""

from __future__ import annotations

import shlex
import sys

from capro.bench import Bench
from capro.bench.grids import GridRow
from capro.bench.pinned import PAPER
from capro.bench.runner import METRICS
from capro.bench.store import only_one
from capro.bench.summary import Measured, TableResult, results_markdown
from capro.errors import CaproError
from capro.evaluate.truth import on_truth
from variants import arguments, bench_of, truth_of

NETS = {
    "small": (
        "net.backbone=small", "views.size=32", "views.crop_scale=0.5", "pretrain.epochs=50", "train.epochs=25",
        "pretrain.lr=0.1", "train.lr=0.05", "train.correct_after=5", "train.frozen_epochs=2",
    ),
    "lite0": (
        "net.backbone=lite0", "views.size=64", "views.crop_scale=0.5", "pretrain.epochs=12", "train.epochs=8",
        "pretrain.lr=0.02", "train.lr=0.01", "train.correct_after=2", "train.frozen_epochs=1",
    ),
}  # fmt: skip
SCHEDULE = (  # of both: batches for ten thousand samples, momenta for some thousand steps
    "net.mode=full", "pretrain.batch_size=64", "pretrain.warmup_epochs=1", "train.batch_size=64",
    "train.warmup_epochs=1", "train.queue=2048", "train.key_momentum=0.99", "train.prototype_momentum=0.95",
    "train.gamma=0.6", "match.k=5", "finetune.batch_size=64", "finetune.epochs=5", "finetune.lr=0.01",
    "finetune.centred=false",
    "log.checkpoint_minutes=2",
)  # fmt: skip
NONE, CB = "train.reference=none", "train.reference=cb"
ROWS = {
    "Vanilla": GridRow("Vanilla", baseline="vanilla"),
    "MoPro": GridRow("MoPro", baseline="mopro"),
    "CAPro, no enhancement": GridRow("", ("match.enhancer=none", NONE)),
    "CAPro, VSGraph's smoothing": GridRow("", ("match.enhancer=knn", NONE)),
    "CAPro, our enhancement": GridRow("", ("match.enhancer=reciprocal", NONE)),
    "CAPro, no enhancement, bootstrapping": GridRow("", ("match.enhancer=none", CB)),
    "CAPro, our enhancement, bootstrapping": GridRow("", ("match.enhancer=reciprocal", CB)),
}
ON_TRUTH = {"anchors true": "anchor_purity", "cleaned labels true": "cleaned_label_accuracy", "kept": "kept"}


def figures_of(bench: Bench, table: str, label: str, seed: int) -> dict[str, float]:
    """The test figures of a row, and what its labels are worth where it cleans."""
    row = ROWS[label]
    run = bench.run_of(table, label, (*PAPER, *row.overrides), seed)
    bench.prepare(run)
    found = bench.finish(run, row)
    if row.baseline:
        return found
    known = on_truth(run, truth_of(bench))
    return {**found, **{name: known[key] for name, key in ON_TRUTH.items()}}


def main() -> None:
    parser = arguments(__doc__, data=["queryweb32"], seeds=2)
    parser.add_argument("--net", choices=NETS, default="small")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    bench = bench_of(args.data, args.runs, [*SCHEDULE, *NETS[args.net], *args.set], seeds=args.seeds)
    command = shlex.join(["python", "benchmarks/full_training.py", *sys.argv[1:]])
    table, rows = f"full-{args.net}", {label: Measured(label) for label in ["Vanilla", *args.rows]}
    with only_one(bench.folder):
        for seed in bench.seeds:
            for label, row in rows.items():
                bench.watch.say(f"{label}, seed {seed}")
                try:
                    row.figures[seed] = figures_of(bench, table, label, seed)
                except CaproError as error:
                    row.problem = str(error)
                done = [each for each in rows.values() if each.figures or each.problem]
                title = f"{args.data}, {args.net}: the encoder learns"
                metrics = (*METRICS["single"], *ON_TRUTH)
                result = TableResult(table, title, done, metrics, "Vanilla", bench.seeds, command=command)
                print(results_markdown(result), flush=True)


if __name__ == "__main__":
    main()
