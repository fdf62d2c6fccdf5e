"""Shared by the accuracy benchmarks: the datasets, and the plan with some stages done in another way.

Every figure comes from runs of the product's own stages over one store per dataset (``runs/bench-NAME``):
stages with equal fingerprints, such as the features of a frozen encoder, are done once. A seed decides
weights, order, views shown and random anchors. ``train_truth`` only measures and makes the oracles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from capro import config
from capro.bench import Bench
from capro.bench.derived import derived_plan, derived_rows
from capro.data.manifest import Manifest, manifest_of
from capro.demo.composition import write_demo
from capro.models.classes import classes_of
from capro.pipeline.artefacts import CLEANED_LABELS, STEP1, STEP2
from capro.pipeline.plan import Plan
from capro.pipeline.progress import Lines
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.results.truth import load_truth
from capro.stages import PLAN
from capro.train.setup import training_set

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
RUNS = Path(__file__).resolve().parents[1] / "runs"
PRESETS = {
    "queryweb32": "small",
    "shopweb64": "small",
    "cococap64": "small-multi",
    "albumtags96": "small-multi",
    "pages256": "photo",
    "crawl240": "photo",
    "demo": "scratch",  # where the encoder learns; `capro demo` takes preset small
}


def arguments(description: str | None, *, data: Sequence[str], seeds: int) -> argparse.ArgumentParser:
    """The options that the accuracy benchmarks share."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--data", default=data[0], choices=data)
    parser.add_argument("--seeds", type=int, default=seeds, help="how many, from the settings' seed on")
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where stores and runs are kept")
    return parser


def bench_of(name: str, runs: Path, overrides: Sequence[str] = (), *, seeds: int = 1) -> Bench:
    """The store and settings of a dataset."""
    folder, source = runs / f"bench-{name}", SHARED / name
    if name == "demo":
        source = runs / "bench-demo-data"
        write_demo(source)
    if not source.is_dir():
        sys.exit(f"error: {source} is not there")
    data = [f"data.source={source}", f"data.classes={source / 'classes.yaml'}"]
    settings = config.load(preset_name=PRESETS[name], overrides=[*data, *overrides])
    watch = Lines(lambda text: print(text, file=sys.stderr, flush=True), stages=False, warnings=False)
    return Bench(folder, settings, range(settings.seed, settings.seed + seeds), watch=watch)


def truth_of(bench: Bench) -> Path:
    """The file with the true labels of a dataset's training samples."""
    return next(Path(str(bench.settings.data.source)).glob("train_truth.*"))


def base_of(bench: Bench, overrides: Sequence[str] = ()) -> Run:
    """A run on all rows as far as its features: what derived runs take their rows and features from."""
    run = bench.run_of("base", "-".join(["all rows", *overrides]), overrides, bench.settings.seed)
    PLAN.do(run, "scan", "classes", watch=bench.watch)
    if run.settings.net.mode == "frozen":
        PLAN.do(run, "features", watch=bench.watch)
    return run


def step3_after_step1(plan: Plan) -> Plan:
    """Step 3 on the labels that step 1 had: step 2 leaves the model as it is, cleaning keeps every label."""

    def train(job: Job) -> None:
        job.write(STEP2, job.read(STEP1))

    def clean(job: Job) -> None:
        job.write(CLEANED_LABELS, training_set(job.run).labels.numpy())

    return plan.replacing(
        *(replace(plan[name], when=lambda _: False) for name in ("embed", "graph", "match")),
        replace(plan["train"], work=train, settings=lambda _: {"model": "step 1"}, reads=["pretrain"]),
        replace(plan["clean"], work=clean, settings=lambda _: {"labels": "web"}, reads=["scan", "classes"]),
    )


def oracle(base: Run, truth: Path, *, relabel: bool) -> Plan:
    """The plan on true labels (relabel), or on those training samples alone whose web label is true."""
    manifest, classes = manifest_of(base), {spec.name for spec in classes_of(base)}
    labels = manifest.samples["labels"].tolist()
    keep = np.ones(len(labels), dtype=bool)
    for row, names in zip(manifest.split("train"), load_truth(truth, manifest), strict=True):
        true = tuple(name for name in names if name in classes)
        if relabel:
            labels[row] = true
            keep[row] = bool(true) or manifest.task == "multi"
        else:
            keep[row] = set(labels[row]) <= set(true)
    return plan_on(base, keep, labels=labels)


def plan_on(
    base: Run,
    keep: np.ndarray,
    *,
    split: Sequence[str] | None = None,
    labels: Sequence[tuple[str, ...]] | None = None,
) -> Plan:
    """The plan on some samples of a run, with another split or other labels where they are given."""
    rows = derived_rows(manifest_of(base), keep, split=split, labels=labels)
    return derived_plan(base, rows, {"rows": Manifest(rows).content})
