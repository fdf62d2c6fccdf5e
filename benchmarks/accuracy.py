"""Test accuracy of vanilla, MoPro's and CAPro's variants, and oracles.

    python benchmarks/accuracy.py --data queryweb32
    python benchmarks/accuracy.py --data shopweb64
    python benchmarks/accuracy.py --data cococap64      several labels
    python benchmarks/accuracy.py --data albumtags96    several labels
    python benchmarks/accuracy.py --data demo           the encoder learns

Each row is a run of the product's stages to its end (frozen EfficientNet-Lite0 at 128 px, but for the demo);
its figure is of the last epoch of step 1 or step 3. Mean and spread (standard deviation) over seeds. Nothing
is chosen on the test set.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

from capro.bench import Bench
from capro.bench.grids import MOPRO
from capro.bench.runner import METRICS
from capro.bench.store import only_one
from capro.bench.summary import Measured, TableResult, paired, results_markdown, spread
from capro.data.manifest import manifest_of
from capro.evaluate.comparison import test_split
from capro.evaluate.metrics import summary
from capro.evaluate.truth import on_truth
from capro.run.directory import Run
from capro.run.plan import Plan
from capro.stages import PLAN
from variants import PRESETS, arguments, base_of, bench_of, oracle, step3_after_step1, truth_of

CLEANED = {
    "labels before": "web_label_accuracy",
    "labels after": "cleaned_label_accuracy",
    "kept": "kept",
    "errors found": "error_average_precision",
    "score ECE": "score_ece",
    "right at 0.9": "right_at_90",
}  # from a name here to a figure of evaluate.truth.on_truth
MORE = {"single": ("ECE",), "multi": ("C-F1@0.5", "O-F1@0.5", "ECE")}  # beside the metrics of `capro bench`
TEXTS, UNBALANCED, STEP3 = ", texts in the label rule", ", balance 0 in step 3", ", then step 3"
PAPER = ("method=paper",)
RULES = {
    "": ("train.text_weight=0",),
    TEXTS: ("train.text_weight=1",),
    UNBALANCED: ("train.text_weight=0", "finetune.balance=0"),
}


@dataclass(frozen=True)
class Variant:
    """A row of the table: settings and plan of its run, and which of the run's two models is shown."""

    label: str
    overrides: Sequence[str] = ()
    plan: Plan = PLAN
    model: str = "capro"  # or vanilla: after step 1

    @property
    def cleans(self) -> bool:
        """Whether its labels go through the label rule."""
        return self.plan is PLAN


def variants(bench: Bench, base: Run, truth: Path) -> list[Variant]:
    """The rows for a data set."""
    steps, web = bench.settings, step3_after_step1(PLAN)
    epochs = steps.pretrain.epochs + steps.train.epochs + steps.finetune.epochs
    rows = [
        Variant("vanilla", PAPER, web, "vanilla"),
        Variant("vanilla, as many epochs as CAPro", [*PAPER, f"pretrain.epochs={epochs}"], web, "vanilla"),
        Variant(f"vanilla{STEP3}", PAPER, web),
        Variant("plus", ["method=plus"]),
    ]
    oracles = {"clean subset": False, "true labels": True}
    if manifest_of(base).task == "multi":
        rows.append(Variant("CAPro", PAPER))
        del oracles["clean subset"]
    else:
        heads = (*PAPER, "train.start=anchors", "train.epochs=0", "finetune.epochs=0")
        rows += [Variant("random anchors + mopro (MoPro)", MOPRO), Variant("anchors only", heads)]
        rows += [
            Variant(f"CAPro from {start}{name}", [*PAPER, f"train.start={start}", *rule])
            for start in ("web", "anchors")
            for name, rule in RULES.items()
        ]
    for name, relabel in oracles.items():
        plan = step3_after_step1(oracle(base, truth, relabel=relabel))
        rows.append(Variant(f"oracle: {name}", PAPER, plan, "vanilla"))
        rows.append(Variant(f"oracle: {name}{STEP3}", PAPER, plan))
    return rows


def measure(bench: Bench, truth: Path, labels: Sequence[str] = ()) -> TableResult:
    """Run the rows (all, or vanilla and those named) with every seed."""
    with only_one(bench.folder):
        base = base_of(bench)
        task = manifest_of(base).task
        metrics = [*METRICS[task], *MORE[task], *CLEANED]
        chosen = variants(bench, base, truth)
        unknown = set(labels) - {row.label for row in chosen}
        if unknown:
            raise SystemExit(f"error: no row {sorted(unknown)}, of {[row.label for row in chosen]}")
        chosen = [row for row in chosen if not labels or row.label in ("vanilla", *labels)]
        measured = {row.label: Measured(row.label) for row in chosen}
        for seed in bench.seeds:
            for row in chosen:
                found = figures_of(bench, row, truth, seed)
                measured[row.label].figures[seed] = found
                bench.watch.say(
                    f"seed {seed}, {row.label}: "
                    + ", ".join(f"{name} {100 * found[name]:.1f}" for name in metrics if name in found)
                )
    title = f"{bench.folder.name}: {bench.settings.net.backbone}, {bench.settings.net.mode}"
    return TableResult("accuracy", title, [*measured.values()], metrics, "vanilla", bench.seeds)


def figures_of(bench: Bench, row: Variant, truth: Path, seed: int) -> dict[str, float]:
    """One run to its end: its figures on the test set, and of its labels where they are cleaned."""
    run = bench.run_of("accuracy", row.label, row.overrides, seed)
    row.plan.run(run, watch=bench.watch)
    tested = test_split(run)
    if tested is None:
        raise SystemExit(f"error: {run.path}: no test samples with scores")
    scores, labels = tested.known()
    found = summary(scores[row.model], labels)
    if row.cleans:
        on = on_truth(run, truth)
        found |= {name: on[figure] for name, figure in CLEANED.items()}
    return found


def comparisons(result: TableResult) -> list[str]:
    """For each row its differences to vanilla, and for CAPro the share of the gap to the oracle."""
    metrics = [name for name in result.metrics if name not in (*CLEANED, "ECE")]
    rows = {row.label: row for row in result.rows}
    best = "oracle: true labels" if "C-F1" in metrics else "oracle: clean subset"
    lines = []
    for label, row in rows.items():
        if row is result.base:
            continue
        gains = {name: paired(row.values(name), result.base.values(name)) for name in metrics}
        parts = [f"{100 * g.mean:+.2f} {name} ({g.wins}/{g.size})" for name, g in gains.items()]
        line = f"{label}: {', '.join(parts)} over vanilla"
        if label.startswith(("CAPro", "plus")) and UNBALANCED not in label:
            for after, words in (("", ""), (STEP3, " with step 3 on both sides")):
                low, high = f"vanilla{after}", f"{best}{after}"
                if low in rows and high in rows:
                    shares = {name: _closed(row, rows[low], rows[high], name) for name in metrics}
                    listed = ", ".join(f"{share:.0%} of {name}" for name, share in shares.items())
                    line += f"; gap to the oracle closed{words}: {listed}"
        lines.append(line)
    return lines


def _closed(row: Measured, low: Measured, high: Measured, metric: str) -> float:
    """Share of the gap between two rows that a third closes; nan where there is none."""
    of, a, b = (spread([*each.values(metric).values()]).mean for each in (row, low, high))
    return (of - a) / (b - a) if b > a else nan


def main() -> None:
    parser = arguments(__doc__, data=[*PRESETS], seeds=3)
    parser.add_argument("--rows", nargs="+", default=[], help="only these, and vanilla")
    args = parser.parse_args()
    begin = time.monotonic()
    bench = bench_of(args.data, args.runs, args.set, seeds=args.seeds)
    result = measure(bench, truth_of(bench), args.rows)
    print(results_markdown(result))
    print("\n".join(comparisons(result)))
    print(f"({time.monotonic() - begin:.0f} s)")


if __name__ == "__main__":
    main()
