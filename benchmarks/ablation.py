"""What each part of the method plus is worth: the posterior with one part removed, against the truth.

    python benchmarks/ablation.py --data queryweb32
    python benchmarks/ablation.py --data all
    python benchmarks/ablation.py --data queryweb32 --per-class 20      fitted to 20 samples of each class, and judged

The inputs are those of the runs of accuracy.py (frozen EfficientNet-Lite0 at 128 px), which are made where
they are missing. Mean over three seeds of the folds (and of the samples with `--per-class`, whose anchors are those of
all samples as in a fit to a part). The truth measures and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.bench import Bench
from capro.bench.store import only_one
from capro.core import plus
from capro.core.plus import fitting, one_label, several
from capro.core.plus.fitting import FoldScores, linear
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import VISUAL
from capro.results.truth import label_accuracy, load_truth, membership, score_quality
from capro.stages import PLAN, posterior
from capro.train.setup import training_set
from variants import PRESETS, arguments, bench_of, truth_of

Change = Callable[[list[Any], dict[str, Any]], None]  # of the arguments of single_label or several_labels


def without_texts(given: list[Any], options: dict[str, Any]) -> None:
    del options
    given[1] = []


def without_labels(given: list[Any], options: dict[str, Any]) -> None:
    del options
    given[3] = torch.full_like(given[3], -1)


def joined_fields(given: list[Any], options: dict[str, Any]) -> None:
    del options
    given[1] = [torch.nn.functional.normalize(torch.stack(given[1]).sum(0), dim=1)] if given[1] else []


def without(*names: str) -> Change:
    """Optional arguments are not given."""

    def change(given: list[Any], options: dict[str, Any]) -> None:
        del given
        for name in names:
            options.pop(name, None)

    return change


def one_round(given: list[Any], options: dict[str, Any]) -> None:
    del given
    options["rounds"] = 1


def in_fold(
    x: Tensor, q: Tensor, fold: Tensor, *, offsets: Tensor | None = None, **options: Any
) -> FoldScores:
    """Stands for `judge_folds`: a classifier that has seen what it judges."""
    del fold
    model = linear(x, q, offsets=offsets, **options)
    return FoldScores(model(x, offsets), model)


def shared(given: list[Any], options: dict[str, Any]) -> None:
    """For `single_label`: classes share their weights, as in a fit to very few samples of each."""
    x, _, class_texts, y = given
    options.pop("anchors", None)
    options["centres"] = plus.Centres.of(x, y, len(class_texts))


BOTH: dict[str, Change | dict[str, Any]] = {
    "all parts": {},
    "no texts": without_texts,
    "one round of EM": one_round,
    "judged in fold": {
        "fitting.judge_folds": in_fold,
        "one_label.judge_folds": in_fold,
        "several.judge_folds": in_fold,
    },
}
ONE = BOTH | {
    "no web labels": without_labels,
    "no anchors: the label-free start": without("anchors"),
    "a start from anchors, however few": {"one_label.worth_a_start": lambda anchors, _: bool(anchors.any())},
    "weights that classes share": shared,
    "no other senses": without("senses", "owner"),
    "no correction on text vectors (V)": {"one_label.TEXT_DECAY": 1e6},
    "no texts start as none of these": {
        "one_label.first_none": lambda field: torch.zeros_like(field.present)
    },
    "sharpness of the picture not fitted": {
        "one_label.temperature": lambda logits, *_: plus.Temperature(
            torch.ones(()), torch.zeros(logits.shape[1])
        )
    },
    "Bayes' rule in place of the cautious pool": {"one_label.cautious_pool": plus.pool},
}
SEVERAL = BOTH | {"all fields as one text": joined_fields, "no bare class names": without("class_names")}
MODULES = {"fitting": fitting, "one_label": one_label, "several": several}


def patched(stack: ExitStack, change: Change | dict[str, Any]) -> None:
    """Remove a part, until the stack is closed."""
    if isinstance(change, dict):
        for place, value in change.items():
            module, name = place.split(".")
            stack.enter_context(patch.object(MODULES[module], name, value))
        return
    for name in ("single_label", "several_labels"):
        real = getattr(plus, name)

        def call(*given: Any, _real: Any = real, **options: Any) -> plus.Posterior:
            changed = list(given)
            change(changed, options)
            work = plus.many_classes if "centres" in options else _real
            found: plus.Posterior = work(*changed, **options)
            return found

        stack.enter_context(patch.object(plus, name, call))


def some_of_each(labels: Tensor, count: int, seed: int) -> NDArray[np.int64]:
    """Rows of at most so many samples of each web label, ascending."""
    order = np.random.default_rng(seed).permutation(len(labels))
    groups = pd.Series(labels.numpy()[order]).groupby(labels.numpy()[order])
    return np.sort(order[(groups.cumcount() < count).to_numpy()])


def measure(bench: Bench, seeds: Sequence[int], per_class: int | None) -> dict[str, list[float]]:
    """Figures of each variant: labels true, kept, errors found, score ECE, right at 0.9."""
    run = bench.run_of("accuracy", "plus", ["method=plus"], 0)
    PLAN.do(run, "scan", "posterior", watch=bench.watch)
    training, features = training_set(run), run.read(VISUAL)
    member = membership(load_truth(truth_of(bench), manifest_of(run)), training.classes)
    rows = SEVERAL if training.multi_label else ONE
    figures: dict[str, list[float]] = {}
    for label, change in rows.items():
        found = []
        for seed in seeds:
            with ExitStack() as stack:
                patched(stack, change)
                if per_class:
                    part = some_of_each(training.labels, per_class, seed)
                    stack.enter_context(patch.object(posterior, "_part", lambda *_, part=part: part))
                    stack.enter_context(patch.object(posterior, "ENOUGH", 0))
                weighed = posterior.weigh(run, training, features, seed=seed)
            q, given, true = weighed.posterior.q, training.labels[weighed.rows], member[weighed.rows]
            anchors = torch.zeros(len(given), dtype=torch.bool)
            decided = plus.decide_pairs(q, given) if training.multi_label else plus.decide(q, given, anchors)
            after, scores = decided.labels.numpy(), q[:, : len(training.classes)].numpy()
            quality = score_quality(scores, given.numpy(), after, true)
            out = after < 0 if after.ndim == 1 else (after < 0).any(axis=1)
            found.append([label_accuracy(after, true), 1 - out.mean(), *quality.values()])
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
