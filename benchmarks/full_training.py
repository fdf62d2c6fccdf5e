"""The paper's order with an encoder that learns: vanilla, MoPro, and CAPro with and without its parts.

    python benchmarks/full_training.py                        a small ResNet from scratch, 32 px, two seeds
    python benchmarks/full_training.py --net tiny             the same with half its channels: a quarter of the time
    python benchmarks/full_training.py --net lite0            EfficientNet-Lite0 from its ImageNet weights, 64 px
    python benchmarks/full_training.py --rows Vanilla MoPro   some rows

On queryweb32 (a frozen encoder cannot show what the paper claims for bootstrapping and enhancement). Every row is the
paper's method (`capro.bench.grids`) under one schedule, all weights learn, the last epoch counts. Step 1 is done once
a seed, and is the row Vanilla; MoPro and "Vanilla, epochs of both steps" are one training each, as long as steps 1 and
2 of CAPro together, so that nobody gains by learning for longer. It takes hours on two cores: stopped at any time, the
same command goes on at its last checkpoint, and the table of what is there is printed at the end of each row, with the
losses of the first and the last epoch of each training: by them a reader judges whether it has converged. All epochs
are in `history.json` of the stage, below `runs/TABLE/ROW/seedN`. `train_truth` only measures.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import NamedTuple

from capro.bench import Bench
from capro.bench.grids import PAPER, GridRow
from capro.bench.runner import METRICS
from capro.bench.store import only_one
from capro.bench.summary import Measured, TableResult, markdown_table, results_markdown
from capro.errors import CaproError
from capro.pipeline.artefacts import BASELINE_HISTORY, HISTORIES
from capro.pipeline.run import Run
from capro.results.truth import on_truth
from variants import arguments, bench_of, truth_of

SCRATCH = (
    "views.size=32", "views.crop_scale=0.5", "pretrain.epochs=24", "train.epochs=10", "pretrain.lr=0.1",
    "train.lr=0.05", "train.correct_after=2", "train.frozen_epochs=1",
)  # fmt: skip
NETS = {
    "small": ("net.backbone=small", *SCRATCH),
    "tiny": ("net.backbone=tiny", *SCRATCH),
    "lite0": (
        "net.backbone=lite0", "views.size=64", "views.crop_scale=0.5", "pretrain.epochs=6", "train.epochs=4",
        "pretrain.lr=0.02", "train.lr=0.01", "train.correct_after=1", "train.frozen_epochs=1",
    ),
}  # fmt: skip
# Of both: batches for ten thousand samples, momenta for some thousand steps. A class has about 298 samples, so an epoch
# leaves 0.997^298 = 0.41 of a prototype; the paper's 0.999 with Google500's 960 a class leaves 0.38. With 0.95
# nothing of the anchors would be left after one epoch. MoPro's eighth of the epochs would be some hundred steps here
# (of WebVision 55,000): it learns for half of them before it corrects.
SCHEDULE = (
    "net.mode=full", "pretrain.batch_size=64", "pretrain.warmup_epochs=1", "train.batch_size=64",
    "train.warmup_epochs=1", "train.queue=2048", "train.key_momentum=0.99", "train.prototype_momentum=0.997",
    "train.gamma=0.6", "baselines.mopro_start=0.5", "match.k=5",
    "finetune.batch_size=64", "finetune.epochs=5", "finetune.lr=0.01",
    "log.checkpoint_minutes=2",
)  # fmt: skip
LONGER = "Vanilla, epochs of both steps"
ONE_TRAINING = {LONGER, "MoPro"}  # rows with the epochs of both steps in one training
NONE, CB = "train.reference=none", "train.reference=cb"
ROWS = {
    "Vanilla": GridRow("Vanilla", baseline="vanilla"),
    LONGER: GridRow("Vanilla", baseline="vanilla"),
    "MoPro": GridRow("MoPro", baseline="mopro"),
    "CAPro, random anchors, no references": GridRow(
        "", ("match.anchors=random", NONE)
    ),  # no text: x/x/x of Tab. 4
    "CAPro, no enhancement": GridRow("", ("match.enhancer=none", NONE)),
    "CAPro, VSGraph's smoothing": GridRow("", ("match.enhancer=knn", NONE)),
    "CAPro, our enhancement": GridRow("", ("match.enhancer=reciprocal", NONE)),
    "CAPro, no enhancement, bootstrapping": GridRow("", ("match.enhancer=none", CB)),
    "CAPro, VSGraph's smoothing, bootstrapping": GridRow("", ("match.enhancer=knn", CB)),
    "CAPro, our enhancement, bootstrapping": GridRow("", ("match.enhancer=reciprocal", CB)),
}
ON_TRUTH = {"anchors true": "anchor_purity", "cleaned labels true": "cleaned_label_accuracy", "kept": "kept"}
LOSSES = {
    "loss": "all terms",
    "cls": "L_cls",
}  # MoPro has L_pro from its second epoch on: its L_cls can be compared


class Ends(NamedTuple):
    """A loss in the first and in the last epoch."""

    first: float
    last: float


Losses = dict[str, dict[str, Ends]]  # training: loss


class Row(NamedTuple):
    """What a row gave with a seed."""

    figures: dict[str, float]
    losses: Losses


def losses_of(run: Run, baseline: str | None) -> Losses:
    """The whole loss and L_cls of each training of a row, at its begin and its end."""
    kept = {"step 1": HISTORIES["pretrain"], "step 2": HISTORIES["train"]}
    if baseline == "vanilla":
        del kept["step 2"]
    elif baseline:
        kept = {"one training": BASELINE_HISTORY.of(f"baselines/{baseline}")}
    found = {}
    for name, artefact in kept.items():
        history = run.read(artefact)
        found[name] = {key: Ends(history[0][key], history[-1][key]) for key in LOSSES}
    return found


def loss_table(rows: Mapping[tuple[str, int], Losses]) -> str:
    """First and last losses by row and seed."""
    cells = [
        [
            f"{label}, seed {seed}",
            training,
            *(f"{ends[key].first:.2f} to {ends[key].last:.2f}" for key in LOSSES),
        ]
        for (label, seed), losses in rows.items()
        for training, ends in losses.items()
    ]
    title = "Training losses, mean over the first and over the last epoch"
    return "\n".join(markdown_table(title, ["row", "training", *LOSSES.values()], cells))


def figures_of(bench: Bench, table: str, label: str, seed: int) -> Row:
    """The test figures of a row, what its labels are worth where it cleans, and its losses."""
    row, overrides = ROWS[label], [*PAPER, *ROWS[label].overrides]
    if label in ONE_TRAINING:
        overrides.append(f"pretrain.epochs={bench.settings.pretrain.epochs + bench.settings.train.epochs}")
    run = bench.run_of(table, label, overrides, seed)
    found = bench.measure(run, row)
    if row.baseline is None:
        known = on_truth(run, truth_of(bench))
        found = {**found, **{name: known[key] for name, key in ON_TRUTH.items()}}
    return Row(found, losses_of(run, row.baseline))


def main() -> None:
    parser = arguments(__doc__, data=["queryweb32"], seeds=2)
    parser.add_argument("--net", choices=NETS, default="small")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    bench = bench_of(args.data, args.runs, [*SCHEDULE, *NETS[args.net], *args.set], seeds=args.seeds)
    command = shlex.join(["python", "benchmarks/full_training.py", *sys.argv[1:]])
    table, rows = f"full-{args.net}", {label: Measured(label) for label in ["Vanilla", *args.rows]}
    losses: dict[tuple[str, int], Losses] = {}
    with only_one(bench.folder):
        for seed in bench.seeds:
            for label, row in rows.items():
                bench.watch.say(f"{label}, seed {seed}")
                try:
                    row.figures[seed], losses[label, seed] = figures_of(bench, table, label, seed)
                except CaproError as error:
                    row.problem = str(error)
                done = [each for each in rows.values() if each.figures or each.problem]
                title = f"{args.data}, {args.net}: the encoder learns"
                metrics = (*METRICS["single"], *ON_TRUTH)
                result = TableResult(table, title, done, metrics, "Vanilla", bench.seeds, command=command)
                print(results_markdown(result), loss_table(losses), sep="\n", flush=True)


if __name__ == "__main__":
    main()
