"""``capro demo``: the whole pipeline on the embedded data, measured against what is really true."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capro import config, pipeline, tables
from capro.data.demo import write_demo
from capro.progress import Say, Watch
from capro.runs import Run

SEVERAL = [  # over the demo's preset where samples have several labels
    "train.gamma=0.9",  # as the paper's NUS-WIDE
    # L_cls is a mean over the classes, so that a logit pulls a dozen times less than with one label;
    # with 1 the encoder forgets the classes for the sake of telling samples apart
    "train.lambda_ins=0.1",
]


@dataclass(frozen=True)
class Demonstrated:
    """A finished demo: its run, and what each stage returned."""

    run: Run
    found: dict[str, Any]


def perform(path: Path, *, multi_label: bool, overrides: list[str], watch: Watch) -> Demonstrated:
    """Write the demo data beside the run directory, run every stage and make the report."""
    source = path.with_name(path.name + "-data")
    data = [f"data.source={source}", f"data.classes={source / 'classes.yaml'}"]
    several = SEVERAL if multi_label else []
    settings = config.load(preset_name="demo", overrides=[*data, *several, *overrides])
    run = Run.create(path, settings)
    truth = source / "train_truth.csv"

    def measure() -> dict[str, Any]:
        return {
            "purity": pipeline.purity_by_enhancer(run, truth),
            "accuracy": pipeline.label_accuracies(run, truth),
            "sheet": pipeline.anchor_sheet(run),
        }

    stages = [
        ("compose", lambda: write_demo(source, multi_label=multi_label)),
        *pipeline.stages_of(run, watch),
        ("measure", measure),
        ("report", lambda: pipeline.report(run, title="capro demo", bar=watch.bar)),
    ]
    return Demonstrated(run, pipeline.perform(run, stages, watch))


def show(demo: Demonstrated, *, commands: str, say: Say) -> None:
    """Print what came out, from the data to the comparison; then what comes next, and where it is."""
    run, found = demo.run, demo.found
    measured = found["measure"]
    tables.scan_summary(found["scan"], quarantine=run.folder("scan") / "quarantine.parquet")
    tables.class_texts(found["classes"])
    tables.purity(measured["purity"], [bool(spec.ambiguous) for spec in found["classes"]])
    tables.run_summary(run)
    tables.label_accuracy(measured["accuracy"])
    tables.comparison(found["evaluate"])
    say(commands)
    say(f"pictures of the anchors: {measured['sheet']}")
    say(f"verdicts with evidence:  {run.folder('clean') / 'verdicts.parquet'}")
    say(f"report, opens offline:   {found['report']}")
