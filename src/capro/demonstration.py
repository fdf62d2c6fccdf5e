"""``capro demo``: the whole pipeline on the embedded data, measured against what is really true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from capro import config, pipeline, progress, tables
from capro.data.demo import write_demo
from capro.runs import Run


def show(
    path: Path,
    *,
    multi_label: bool,
    overrides: list[str],
    bar: progress.Bar,
    say: Callable[[str], None],
) -> Run:
    """Write the demo data beside the run directory, run every stage, print what came out."""
    source = path.with_name(path.name + "-data")
    say(f"composing the demo data in {source}")
    write_demo(source, multi_label=multi_label)
    data = [f"data.source={source}", f"data.classes={source / 'classes.yaml'}"]
    settings = config.load(preset_name="demo", overrides=[*data, *overrides])
    run = Run.create(path, settings)

    summary = pipeline.scan(run, bar=bar)
    tables.scan_summary(summary, quarantine=run.folder("scan") / "quarantine.parquet")
    specs = pipeline.classes(run, bar=bar, warn=say)
    tables.class_texts(specs)
    results = pipeline.run_all(run, bar=bar, say=say)

    truth = source / "train_truth.csv"
    found = pipeline.purity_by_enhancer(run, truth)
    tables.purity(found, [bool(spec.ambiguous) for spec in specs])
    sheet = pipeline.anchor_sheet(run)
    accuracy = pipeline.label_accuracies(run, truth)
    page = pipeline.report(run, title="capro demo", bar=bar)
    tables.run_summary(run)
    tables.label_accuracy(accuracy)
    tables.comparison(results)
    say(f"pictures of the anchors: {sheet}")
    say(f"verdicts with evidence:  {run.folder('clean') / 'verdicts.parquet'}")
    say(f"report, opens offline:   {page}")
    return run
