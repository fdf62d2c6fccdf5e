"""What each part of the method plus is worth: the posterior with one part removed, against the truth.

    python benchmarks/ablation.py --data queryweb32
    python benchmarks/ablation.py --data all
    python benchmarks/ablation.py --data queryweb32 --per-class 20      fitted to 20 samples of each class, and judged

The inputs are those of the runs of accuracy.py (frozen EfficientNet-Lite0), which are made where they are
missing. Mean over three seeds of the folds (and of the samples with `--per-class`, whose anchors are those of
all samples as in a fit to a part). The truth measures and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.bench import Bench
from capro.bench.store import only_one
from capro.core import posterior, views
from capro.core.evidence import Evidence
from capro.core.label_rule import decide, decide_multi_label
from capro.core.linear import Centring, FoldScores, linear
from capro.core.posterior import MultiLabelPosterior, SingleLabelPosterior, Temperature
from capro.core.views import Centres
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import VISUAL
from capro.results.truth import load_truth, membership, score_quality, true_labels
from capro.stages import PLAN
from capro.stages.posterior import evidence_of
from capro.train.setup import training_set
from variants import PRESETS, arguments, bench_of, truth_of

Less = Callable[[Evidence], Evidence]  # the evidence with a part removed


def without_texts(evidence: Evidence) -> Evidence:
    joint = evidence.joint and replace(evidence.joint, texts=[])
    return replace(evidence, texts=[], joint=joint)


def without_labels(evidence: Evidence) -> Evidence:
    return replace(evidence, answers=[torch.full_like(evidence.answers[0], -1), *evidence.answers[1:]])


def without_nouns(evidence: Evidence) -> Evidence:
    return replace(evidence, answers=evidence.answers[:1])


def without_head(evidence: Evidence) -> Evidence:
    return replace(evidence, head=None)


def joined_fields(evidence: Evidence) -> Evidence:
    joined = torch.nn.functional.normalize(torch.stack([*evidence.texts]).sum(0), dim=1)
    return replace(evidence, texts=[joined])


def without_anchors(evidence: Evidence) -> Evidence:
    return replace(evidence, anchors=None)


def without_senses(evidence: Evidence) -> Evidence:
    return replace(evidence, meanings=replace(evidence.meanings, senses=None, owner=None))


def without_names(evidence: Evidence) -> Evidence:
    return replace(evidence, meanings=replace(evidence.meanings, names=None))


def in_fold(
    x: Tensor, q: Tensor, fold: Tensor, *, offsets: Tensor | None = None, **options: Any
) -> FoldScores:
    """Stands for `judge_folds`: a classifier that has seen what it judges."""
    del fold
    model = linear(x, q, offsets=offsets, **options)
    return FoldScores(model(x, offsets), model)


def not_fitted(_: type, logits: Tensor, *__: Any, **___: Any) -> Temperature:
    return Temperature(torch.ones(()), torch.zeros(logits.shape[1]))


# options of the estimator, a change of the evidence, or names of functions and what stands for them
Change = dict[str, Any] | Less | list[tuple[Any, str, Any]]
BOTH: dict[str, Change] = {
    "all parts": {},
    "no texts": without_texts,
    "one round of EM": {"rounds": 1},
    "judged in fold": [(posterior, "judge_folds", in_fold), (views, "judge_folds", in_fold)],
}
SINGLE: dict[str, Change] = BOTH | {
    "no web labels": without_labels,
    "no anchors: the label-free start": without_anchors,
    "a start from anchors, however few": [
        (posterior, "worth_a_start", lambda anchors, _: bool(anchors.any()))
    ],
    "weights that classes share": {"shared": True},
    "no other senses": without_senses,
    "no correction on text vectors (V)": [(posterior, "TEXT_DECAY", 1e6)],
    "no nouns": without_nouns,
    "none of these: not by texts": [(posterior, "far_texts", lambda field: torch.zeros_like(field.present))],
    "none of these: not by doubt": [
        (posterior, "doubtful_pictures", lambda _, y, *__: torch.zeros_like(y, dtype=torch.bool))
    ],
    "none of these: not by the encoder's head": without_head,
    "sharpness of the picture not fitted": [(Temperature, "fitted", classmethod(not_fitted))],
    "Bayes' rule in place of the cautious pool": [(posterior, "cautious_pool", posterior.pool)],
}
MULTI: dict[str, Change] = BOTH | {
    "all fields as one text": joined_fields,
    "no bare class names": without_names,
}


@contextmanager
def patched(change: Change) -> Iterator[None]:
    """Functions that stand for others."""
    changes = change if isinstance(change, list) else []
    patches = [patch.object(*each) for each in changes]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def posterior_without(evidence: Evidence, change: Change, *, multi_label: bool, seed: int) -> Tensor:
    """The posterior of the samples with one part removed."""
    options = dict(change) if isinstance(change, dict) else {}
    evidence = change(evidence) if callable(change) else evidence
    with patched(change):
        if multi_label:
            return MultiLabelPosterior(seed=seed, **options).fit(evidence).out_of_fold.q
        if options.pop("shared", False):
            x = Centring.of(evidence.pictures)(evidence.pictures)
            options["centres"] = Centres.of(x, evidence.answers[0], evidence.classes)
        return SingleLabelPosterior(seed=seed, **options).fit(evidence).out_of_fold.q


def some_of_each(labels: Tensor, count: int, seed: int) -> NDArray[np.int64]:
    """Rows of at most so many samples of each web label, ascending."""
    order = np.random.default_rng(seed).permutation(len(labels))
    groups = pd.Series(labels.numpy()[order]).groupby(labels.numpy()[order])
    return np.sort(order[(groups.cumcount() < count).to_numpy()])


def measure(bench: Bench, seeds: Sequence[int], per_class: int | None) -> dict[str, list[float]]:
    """Figures of each variant: labels true, kept, errors found, score ECE, right at 0.9."""
    run = bench.run_of("accuracy", "plus", ["method=plus"], 0)
    PLAN.do(run, "scan", "posterior", watch=bench.watch)
    training = training_set(run)
    whole = evidence_of(run, training, run.read(VISUAL))
    member = membership(load_truth(truth_of(bench), manifest_of(run)), training.classes)
    figures: dict[str, list[float]] = {}
    for label, change in (MULTI if training.multi_label else SINGLE).items():
        found = []
        for seed in seeds:
            rows = np.arange(len(whole))
            if per_class:
                rows = some_of_each(training.labels, per_class, seed)
            q = posterior_without(whole.take(rows), change, multi_label=training.multi_label, seed=seed)
            given, true = training.labels[rows], member[rows]
            anchors = torch.zeros(len(given), dtype=torch.bool)
            corrected = decide_multi_label(q, given) if training.multi_label else decide(q, given, anchors)
            after, scores = corrected.labels.numpy(), q[:, : len(training.classes)].numpy()
            quality = score_quality(scores, given.numpy(), after, true)
            shown = [quality[name] for name in ("error_average_precision", "score_ece", "right_at_90")]
            out = training.kind.dropped(after)
            found.append([true_labels(after, true).share, 1 - out.mean(), *shown])
        figures[label] = np.mean(found, axis=0).tolist()
        bench.watch.say(f"{label}: {figures[label]}")
    return figures


def main() -> None:
    names = [name for name in PRESETS if name != "demo"]
    parser = arguments(__doc__, data=["all", *names], seeds=3)
    parser.add_argument("--per-class", type=int, help="samples of each class (one label); all if unset")
    args = parser.parse_args()
    for name in names if args.data == "all" else [args.data]:
        bench = bench_of(name, args.runs, args.set)
        with only_one(bench.folder):
            found = measure(bench, range(args.seeds), args.per_class)
        title = f"{name}, {args.per_class} of each class" if args.per_class else name
        print(f"\n| {title} | labels true | kept | errors found | score ECE | right at 0.9 |")
        print("|---" * 6 + "|")
        for label, figures in found.items():
            print(f"| {label} | " + " | ".join(f"{100 * value:.1f}" for value in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
