"""Test accuracy of vanilla, CAPro's variants, and oracles.

    python benchmarks/accuracy.py --data queryweb32
    python benchmarks/accuracy.py --data shopweb64
    python benchmarks/accuracy.py --data cococap64      several labels
    python benchmarks/accuracy.py --data albumtags96    several labels
    python benchmarks/accuracy.py --data demo           the encoder learns

    python benchmarks/accuracy.py --data all            each in turn

Each row is a run of the product's stages to its end (frozen EfficientNet-Lite0 at 128 px, but for the demo);
its figure is of the last epoch of step 1 or step 3. Mean and spread (standard deviation) over seeds. Nothing
is chosen on the test set. Rows other than plus have three augmented views, which help them (docs/plus.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np

from capro.bench import Bench
from capro.bench.runner import METRICS
from capro.bench.store import only_one
from capro.bench.summary import Measured, TableResult, paired, results_markdown, spread
from capro.core.kept_scores import KeptScores
from capro.data.labels import labels_of
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import CLEANED_LABELS, FUSED_SCORES
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.results.comparison import test_split
from capro.results.metrics import summary
from capro.results.truth import load_truth, membership, score_quality, true_labels
from capro.stages import PLAN
from capro.train.setup import training_set
from others import cleanlab_plan, datalab, find_issues
from variants import PRESETS, arguments, base_of, bench_of, oracle, step3_after_step1, truth_of

CLEANED = {
    "labels before": "web_label_accuracy",
    "labels after": "cleaned_label_accuracy",
    "kept": "kept",
    "errors found": "error_average_precision",
    "score ECE": "score_ece",
    "right at 0.9": "right_at_90",
}  # from a name here to a figure of `cleaned_figures`
TAGS = {
    "ECE of given tags": "given_ece",
    "added labels right": "added_right",
    "removed labels right": "removed_right",
}  # the same, several labels
MORE = {"single": ("ECE",), "multi": ("C-F1@0.5", "O-F1@0.5", "ECE")}  # beside the metrics of `capro bench`
UNBALANCED, STEP3 = ", balance 0 in step 3", ", then step 3"
PAPER = ("method=paper", "net.frozen_views=3")
RANDOM = (
    "match.anchors=random", "train.policy=mopro", "train.start=web", "train.reference=none",
    "finetune.balance=null",
)  # fmt: skip
BALANCES = {"": (), UNBALANCED: ("finetune.balance=0",)}


@dataclass(frozen=True)
class Variant:
    """A row of the table: settings and plan of its run, and which of the run's two models is shown."""

    label: str
    overrides: Sequence[str] = ()
    plan: Plan = PLAN
    model: str = "capro"  # or vanilla: after step 1

    cleans: bool = True  # whether labels are changed


def variants(bench: Bench, base: Run, truth: Path) -> list[Variant]:
    """The rows for a dataset."""
    steps, web = bench.settings, step3_after_step1(PLAN)
    epochs = steps.pretrain.epochs + steps.train.epochs + steps.finetune.epochs
    rows = [
        Variant("vanilla", PAPER, web, "vanilla", cleans=False),
        Variant(
            "vanilla, as many epochs as CAPro", [*PAPER, f"pretrain.epochs={epochs}"], web, "vanilla",
            cleans=False,
        ),
        Variant(f"vanilla{STEP3}", PAPER, web, cleans=False),
        Variant("plus", ["method=plus"]),
    ]  # fmt: skip
    if base.settings.net.mode == "frozen":
        rows.append(Variant("cleanlab find_label_issues", PAPER, cleanlab_plan(PLAN, find_issues)))
    oracles = {"clean subset": False, "true labels": True}
    if manifest_of(base).task == "multi":
        rows.append(Variant("CAPro", PAPER))
        del oracles["clean subset"]
    else:
        heads = (*PAPER, "train.start=anchors", "train.epochs=0", "finetune.epochs=0")
        if base.settings.net.mode == "frozen":
            rows.append(Variant("cleanlab Datalab", PAPER, cleanlab_plan(PLAN, datalab)))
        rows += [Variant("random anchors, MoPro's rule", [*PAPER, *RANDOM]), Variant("anchors only", heads)]
        rows += [
            Variant(f"CAPro from {start}{name}", [*PAPER, f"train.start={start}", *balance])
            for start in ("web", "anchors")
            for name, balance in BALANCES.items()
        ]
    for name, relabel in oracles.items():
        plan = step3_after_step1(oracle(base, truth, relabel=relabel))
        rows.append(Variant(f"oracle: {name}", PAPER, plan, "vanilla", cleans=False))
        rows.append(Variant(f"oracle: {name}{STEP3}", PAPER, plan, cleans=False))
    return rows


def measure(bench: Bench, truth: Path, labels: Sequence[str] = ()) -> TableResult:
    """Run the rows (all, or vanilla and those named) with every seed."""
    with only_one(bench.folder):
        base = base_of(bench, PAPER)
        task = manifest_of(base).task
        metrics = [*METRICS[task], *MORE[task], *CLEANED, *(TAGS if task == "multi" else ())]
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
    row.plan.do(run, *row.plan.all_names(run), watch=bench.watch)
    tested = test_split(run)
    if tested is None:
        raise SystemExit(f"error: {run.path}: no test samples with scores")
    scores, labels = tested.known()
    found = summary(scores[row.model], labels)
    if row.cleans:
        on = cleaned_figures(run, truth)
        # nothing was added: there is no share of it
        found |= {name: on[figure] for name, figure in CLEANED.items()}
        found |= {name: on[figure] for name, figure in TAGS.items() if not np.isnan(on.get(figure, nan))}
    return found


def cleaned_figures(run: Run, truth: Path) -> dict[str, float]:
    """How true the labels are before and after, and how well the scores find the wrong ones."""
    manifest, classes = manifest_of(run), training_set(run).classes
    member = membership(load_truth(truth, manifest), classes)
    before = labels_of(manifest, manifest.split("train"), classes)
    after = np.array(run.read(CLEANED_LABELS))
    scores = KeptScores(run.read(FUSED_SCORES), "fused", member.shape[1])[:]
    out = after < 0 if after.ndim == 1 else (after < 0).any(axis=1)
    return {
        "web_label_accuracy": true_labels(before, member).share,
        "cleaned_label_accuracy": true_labels(after, member).share,
        "kept": float(1 - out.mean()),
        **score_quality(scores, before, after, member),
    }


def comparisons(result: TableResult) -> list[str]:
    """For each row its differences to vanilla, and for CAPro the share of the gap to the oracle."""
    metrics = [name for name in result.metrics if name not in (*CLEANED, *TAGS, "ECE")]
    rows = {row.label: row for row in result.rows}
    best = "oracle: true labels" if "C-F1" in metrics else "oracle: clean subset"
    lines = []
    for label, row in rows.items():
        if row is result.base:
            continue
        gains = {name: paired(row.values(name), result.base.values(name)) for name in metrics}
        parts = [f"{100 * g.mean:+.2f} {name} ({g.wins}/{g.size})" for name, g in gains.items()]
        line = f"{label}: {', '.join(parts)} over vanilla"
        if label.startswith(("CAPro", "plus", "cleanlab")) and UNBALANCED not in label:
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
    parser = arguments(__doc__, data=["all", *PRESETS], seeds=3)
    parser.add_argument("--rows", nargs="+", default=[], help="only these, and vanilla")
    args = parser.parse_args()
    for name in PRESETS if args.data == "all" else [args.data]:
        begin = time.monotonic()
        bench = bench_of(name, args.runs, args.set, seeds=args.seeds)
        result = measure(bench, truth_of(bench), args.rows)
        print(results_markdown(result))
        print("\n".join(comparisons(result)))
        print(f"({time.monotonic() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
