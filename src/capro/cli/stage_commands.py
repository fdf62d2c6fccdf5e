"""Commands that do one stage: `capro scan`, `classes`, `pretrain` ... `finetune`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from capro.cli.options import (
    AsJson,
    Force,
    Memory,
    Overrides,
    Preset,
    RunFolder,
    Yes,
    local_file,
    open_run,
    start_run,
    with_data_options,
    with_memory,
)
from capro.cli.program import agreement, app, classes_app, fail, note, plain_lines, print_result
from capro.stages import PLAN
from capro.wording import some


@app.command()
@with_data_options
def scan(
    run: RunFolder,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="Folder, table, tar shards, hub:NAME or s3://ADDRESS; the run's own source if unset.",
        ),
    ] = None,
    preset: Preset = None,
    set_: Overrides = None,
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Read a source into a manifest.

    Every row of the source becomes a sample or is quarantined with a reason.
    """
    from capro.cli import tables
    from capro.pipeline.artefacts import QUARANTINE, SUMMARY

    opened, choose = start_run(run, source, set_, preset=preset)
    watch = plain_lines(warnings=False)  # the table has them
    PLAN.do(opened, "scan", watch=watch, force=force, agree=agreement(yes))
    if choose is not None:
        choose(opened, watch)
    quarantine, without_texts = opened.file(QUARANTINE), opened.settings.data.without_texts
    print_result(
        opened.read(SUMMARY),
        as_json,
        lambda summary: tables.scan_summary(summary, quarantine, without_texts=without_texts),
    )


@classes_app.command("suggest")
def classes_suggest(
    run: RunFolder,
    out: Annotated[Path | None, local_file("--out", help="File to write: a classes.yaml to edit.")] = None,
    set_: Overrides = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Rank the WordNet senses of every class by the texts of its samples."""
    if out is not None and out.exists():  # before anything is imported
        fail(f"{out}: exists already", "give another file to --out, or delete it")
    from capro.cli import tables
    from capro.models.classes import draft, save_classes
    from capro.stages.classes import suggest

    opened, watch = open_run(run, set_), plain_lines()
    opened.save_settings()
    PLAN.refresh(opened, "scan", watch=watch, agree=agreement(yes))
    suggestions = suggest(opened, watch=watch)
    if out is not None:
        save_classes(out, [draft(suggestion) for suggestion in suggestions], suggestions=suggestions)
        note(f"wrote {out}: check the ambiguous classes, then use it with --set data.classes={out}")
    bare = [each.name for each in suggestions if each.best is None]
    if bare:
        where = f"in {out}" if out else "in a classes.yaml (--out writes one)"
        note(f"WordNet has no sense of {some(bare)}: write a definition of each {where}")
    if not any(each.texts for each in suggestions):
        note("no text was compared: the senses are in WordNet's order, what a picture can show first")
    plain = [each.as_dict() for each in suggestions]
    print_result(plain, as_json, lambda _: tables.suggestions(suggestions))


@classes_app.command("show")
def classes_show(run: RunFolder, set_: Overrides = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Find the sense of every class of a run and print its class text."""
    from capro.cli import tables
    from capro.models.classes import classes_of

    opened = open_run(run, set_)
    PLAN.do(opened, "classes", watch=plain_lines(), agree=agreement(yes))
    specs = classes_of(opened)
    print_result([asdict(spec) for spec in specs], as_json, lambda _: tables.class_texts(specs))


@app.command()
def pretrain(run: RunFolder, set_: Overrides = None, yes: Yes = False) -> None:
    """Step 1: train on the web labels, the vanilla baseline."""
    PLAN.do(open_run(run, set_), "pretrain", watch=plain_lines(), agree=agreement(yes))


@app.command()
def embed(run: RunFolder, set_: Overrides = None, yes: Yes = False) -> None:
    """Turn every text and class text into a vector."""
    PLAN.do(open_run(run, set_), "embed", watch=plain_lines(), agree=agreement(yes))


@app.command()
def match(
    run: RunFolder, memory: Memory = None, set_: Overrides = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Choose the anchors of each class by their texts.

    Before that, each text gets a share of the texts of similar pictures (text enhancement).
    """
    from capro.cli import tables
    from capro.pipeline.artefacts import ANCHORS

    opened = open_run(run, with_memory(set_, memory))
    result = PLAN.do(opened, "match", watch=plain_lines(), agree=agreement(yes))
    print_result(result, as_json, lambda result: tables.match_summary(result, opened.file(ANCHORS)))


@app.command()
def train(run: RunFolder, set_: Overrides = None, yes: Yes = False) -> None:
    """Step 2: prototypes, bootstrapping and label correction."""
    PLAN.do(open_run(run, set_), "train", watch=plain_lines(), agree=agreement(yes))


@app.command()
def clean(run: RunFolder, set_: Overrides = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Judge every training sample: anchor, keep, relabel or drop."""
    from capro.cli import tables

    opened = open_run(run, set_)
    counts = PLAN.do(opened, "clean", watch=plain_lines(), agree=agreement(yes))
    print_result(counts, as_json, lambda _: tables.clean_summary(opened))


@app.command()
def finetune(run: RunFolder, set_: Overrides = None, yes: Yes = False) -> None:
    """Step 3: train the classifier alone on the corrected labels."""
    PLAN.do(open_run(run, set_), "finetune", watch=plain_lines(), agree=agreement(yes))
