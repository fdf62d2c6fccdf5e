"""A messy crawl: what shows nothing wanted, what is junk, and who finds it.

    python benchmarks/crawl.py [--data crawl240] [--seeds 3] [--set plus.drop_above=0.7]

Rows: plus, CAPro as published (method=paper), and cleanlab (`find_label_issues`) on the same features, each to its end.
Of the photographs: share of the kept labels that are true, how many of those that show none of the classes are dropped,
and AUC of the given label's score for wrong labels. Of all samples: how many drops show none of the classes, and how
much of the junk (icons, banners, screenshots, animated files) is dropped. Test top-1 is of the last epoch. Nothing is
chosen on truth or test data; with several seeds mean and standard deviation.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import roc_auc_score

from accuracy import PAPER
from capro.bench import Bench
from capro.bench.store import only_one
from capro.core.kept_scores import KeptScores
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import CLEANED_LABELS, FUSED_SCORES
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.results.comparison import test_split
from capro.results.metrics import summary
from capro.results.truth import load_truth, membership
from capro.stages import PLAN
from capro.train.setup import training_set
from others import cleanlab_plan, find_issues
from variants import arguments, bench_of, truth_of

PHOTOGRAPHS, COPIES = ("search", "page"), ("copy",)  # in the truth file's `kind`; what is neither is junk
COLUMNS = ["labels true", "kept", "nothing wanted dropped", "drops right", "junk dropped", "AUC", "top-1"]


def kinds_of(bench: Bench, run: Run) -> np.ndarray:
    """What each training sample is, by the truth file."""
    with truth_of(bench).open(encoding="utf-8", newline="") as file:
        kinds = {row["file_name"]: row.get("kind", "search") for row in csv.DictReader(file)}
    manifest = manifest_of(run)
    paths = manifest.samples["path"].iloc[manifest.split("train")]
    return np.array([kinds["/".join(path.split("/")[-2:])] for path in paths])


def figures_of(bench: Bench, run: Run) -> dict[str, float]:
    """Of a run to its end."""
    training, manifest = training_set(run), manifest_of(run)
    member = np.asarray(membership(load_truth(truth_of(bench), manifest), training.classes))
    given, after = training.labels.numpy(), np.array(run.read(CLEANED_LABELS))
    kinds, every = kinds_of(bench, run), np.arange(len(given))
    photo = np.isin(kinds, PHOTOGRAPHS)
    junk, out = ~photo & ~np.isin(kinds, COPIES), after < 0
    none = np.asarray(~member.any(axis=1))
    kept = photo & ~out
    scores = KeptScores(run.read(FUSED_SCORES), "fused", member.shape[1])[:]
    tested = test_split(run)
    if tested is None:
        raise SystemExit(f"error: {run.path}: no test samples with scores")
    test_scores, test_labels = tested.known()
    return {
        "labels true": float(member[every, after][kept].mean()),
        "kept": float(kept.sum() / photo.sum()),
        "nothing wanted dropped": float(out[photo & none].mean()),
        "drops right": float(none[out].mean()) if out.any() else float("nan"),
        "junk dropped": float(out[junk].mean()),
        "AUC": float(roc_auc_score(~member[every, given][photo], 1 - scores[every, given][photo])),
        "top-1": summary(test_scores["capro"], test_labels)["top1"],
    }


def cell(values: Sequence[float]) -> str:
    """Mean and spread in per cent."""
    mean, spread = 100 * float(np.mean(values)), 100 * float(np.std(values))
    return f"{mean:.1f} ± {spread:.1f}" if len(values) > 1 else f"{mean:.1f}"


def main() -> None:
    parser = arguments(__doc__, data=["crawl240"], seeds=3)
    args = parser.parse_args()
    bench = bench_of(args.data, args.runs, args.set, seeds=args.seeds)
    rows: dict[str, tuple[Sequence[str], Plan]] = {
        "plus": (["method=plus"], PLAN),
        "CAPro as published": (PAPER, PLAN),
        "cleanlab": (PAPER, cleanlab_plan(PLAN, find_issues)),
    }
    print("| " + " | ".join(["", *COLUMNS]) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
    with only_one(bench.folder):
        for label, (overrides, plan) in rows.items():
            runs = [bench.run_of("crawl", label, overrides, seed) for seed in bench.seeds]
            for run in runs:
                plan.do(run, *plan.all_names(run), watch=bench.watch)
            found = [figures_of(bench, run) for run in runs]
            cells = [cell([each[name] for each in found]) for name in COLUMNS]
            print("| " + " | ".join([label, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
