"""Commands that do everything: `capro run`, `demo`, `bench`; and what they ask for afterwards."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from capro.cli.options import (
    Address,
    AsJson,
    EngineName,
    Memory,
    Overrides,
    Preset,
    RunFolder,
    SettingsFile,
    SourceOption,
    Yes,
    local_file,
    open_run,
    resolver,
    start_run,
    with_data_options,
    with_memory,
)
from capro.cli.program import agreement, app, live, note, plain_lines, print_result
from capro.config import named_preset
from capro.data.readers import on_hub
from capro.errors import ConfigError
from capro.stores import any_path, local_path


def next_commands(place: str, *, tested: bool) -> str:
    """What one does with a finished run, ready to be copied; figures only if there is a test split."""
    run = shlex.quote(place)
    rows = [
        (f"capro report {run}", "one HTML page with results, pictures and evidence"),
        (f"capro review {run} --open", "decide doubtful samples yourself"),
        *([(f"capro evaluate {run}", "figures by class, the classes made worse first")] * tested),
        (f"capro export {run} --out cleaned", "the cleaned dataset"),
        (f"capro export-model {run} --out model", "the model, for `capro predict`"),
    ]
    width = max(len(command) for command, _ in rows)
    return "\n".join(["next:", *(f"  {command:<{width}}  {text}" for command, text in rows)])


@app.command("run")
@with_data_options
def run_command(
    config: SettingsFile = None,
    data: SourceOption = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="PATH", help="Run directory; runs/NAME if unset.")
    ] = None,
    preset: Preset = None,
    memory: Memory = None,
    engine: EngineName = "process",
    address: Address = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done and why, and do nothing.")
    ] = False,
    set_: Overrides = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Do every stage, from scan to evaluation.

    Stages that are fresh are skipped, so that the same command continues a run that was stopped. An existing run
    keeps the settings that the command does not change; a new run without a preset gets one that fits the data.
    """
    from capro.cli import tables
    from capro.pipeline.engine import check_engine, engine_of
    from capro.stages import PLAN, run_all

    check_engine(engine, address)
    set_ = with_memory(set_, memory)
    path = run or str(Path("runs") / _name(config, data, set_))
    opened, choose = start_run(path, data, set_, file=config, preset=preset)
    if dry_run:
        outlooks = PLAN.look(opened, *PLAN.all_names(opened))
        rows = [each.as_dict() for each in outlooks]
        kept = {each.stage: PLAN.kept(opened, each) for each in outlooks}
        print_result(rows, as_json, lambda _: tables.outlook(outlooks, kept))
        return
    with engine_of(engine, address) as workers, live(f"capro run {opened.place}") as watch:
        figures = run_all(opened, watch=watch, choose=choose, engine=workers, agree=agreement(yes))
    print_result(figures, as_json, lambda figures: tables.run_summary(opened, figures))
    if not as_json:
        note(f"results are in {opened.place}\n{next_commands(opened.place, tested=bool(figures))}")


def _name(file: Path | None, data: str | None, overrides: list[str]) -> str:
    """The name of a run without --run: that of its file, or of its source."""
    from capro import config

    if file is not None:
        return file.stem
    return Path(data or config.load(overrides=overrides).data.source or "capro").stem


@app.command()
def demo(
    run: RunFolder = "runs/demo",
    multi_label: Annotated[bool, typer.Option(help="Images with several labels.")] = False,
    set_: Overrides = None,
) -> None:
    """Run everything on the embedded demo data.

    The demo data have true labels, with which the results are compared.
    """
    from capro.cli import tables
    from capro.demo.run import run_demo
    from capro.pipeline.artefacts import VERDICTS

    folder = local_path(run, "--run")
    with live(f"capro demo {run}") as watch:
        made = run_demo(folder, multi_label=multi_label, overrides=set_ or [], watch=watch)
    tables.demo_summary(made)
    note(next_commands(run, tested=True))
    note(f"pictures of the anchors: {made.sheet}")
    note(f"verdicts with evidence:  {made.run.file(VERDICTS)}")
    note(f"report, opens offline:   {made.report}")
    note(f"review it yourself:      capro review {shlex.quote(run)} --open")


@app.command("bench")
@with_data_options
def bench_command(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="main, text, reference, gamma, frequency, policy, k, lambda, weights, openset, cost, or all.",
        ),
    ],
    run: RunFolder,
    data: SourceOption = None,
    config: Annotated[Path | None, local_file("--config", help="YAML file with settings.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per row, each with its own seed.")] = 3,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only this row; may be repeated.")] = None,
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--from", help="Another run, whose stages with the same fingerprint are reused; may be repeated."
        ),
    ] = None,
    novel: Annotated[
        Path | None,
        local_file(help="openset: file with the novel classes, one per line; half of the classes if unset."),
    ] = None,
    preset: Preset = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make tables of the paper on your data.

    Runs that are finished are not done again.
    """
    from capro.bench import PINNED, TABLES, Bench, NotForThisData, bench
    from capro.stages.scan import find_sources

    settings = resolver(data, set_, file=config)({}, preset)
    if not on_hub(settings.data, str(settings.data.source)):  # the hub answers later
        find_sources(settings.data)
    named = named_preset(config, preset)
    product = f"capro, preset {named}" if named else "capro, settings as given"
    own = [name for text in set_ or [] if (name := text.partition("=")[0].strip()) in PINNED]
    if own:
        note(
            f"{', '.join(own)}: used in the row '{product}' only; other rows have the paper's settings (docs/bench.md)"
        )
    work = Bench(
        local_path(run, "--run"),
        settings,
        [settings.seed + number for number in range(seeds)],
        given=[local_path(each, "--from") for each in take or []],
        novel=novel,
        product=product,
        command=shlex.join(["capro", *sys.argv[1:]]),
        watch=plain_lines(stages=False, warnings=False),
    )
    every = tables == ["all"]
    for name in TABLES if every else tables:
        try:
            table = bench(work, name, rows=rows or [])
        except NotForThisData as error:
            if not every:
                raise
            note(f"table {name} is left out: {error}")
            continue
        print_result(table, as_json, lambda table: print(Path(table["files"][0]).read_text("utf-8")))
        note(f"written: {', '.join(table['files'])}")


def _is_run(text: str) -> bool:
    """Whether a path or an address is a run directory, not data."""
    from capro.pipeline.artefacts import SETTINGS

    return not text.startswith("hub:") and (any_path(text) / SETTINGS).exists()


@app.command()
@with_data_options
def doctor(
    path: Annotated[str | None, typer.Argument(metavar="RUN|DATA", help="Run directory or source.")] = None,
    preset: Preset = None,
    set_: Overrides = None,
    machine: Annotated[
        bool, typer.Option("--environment", help="Versions, processors and devices, for a bug report.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what looks wrong and which settings fit.

    Uses the data and, where they exist, the results; gives noise, gamma and K with the reasons.
    """
    import tempfile

    from capro.cli import evaluation_tables

    if machine:
        if path is not None:
            raise ConfigError(
                f"{path}: --environment is about this machine, not about a run or data",
                hint="leave the path out",
            )
        from capro.environment import environment

        print_result(environment(), as_json, evaluation_tables.environment)
        return
    if path is None:
        raise ConfigError(
            "doctor needs a run directory or a source",
            hint="give one, `capro doctor RUN`; or `capro doctor --environment` for a bug report",
        )
    from capro.results.doctor import advice
    from capro.stages import PLAN

    if _is_run(path):
        if preset is not None or set_:
            raise ConfigError(
                f"{path}: this run has settings already, and doctor changes none",
                hint=f"`capro run --run {shlex.quote(path)}` with these options changes them",
            )
        opened = open_run(path)
        PLAN.refresh(opened, watch=plain_lines(), agree=agreement(yes))
        findings = advice(opened)
    else:
        with tempfile.TemporaryDirectory(prefix="capro-doctor-") as folder:
            watch = plain_lines()
            opened, choose = start_run(f"{folder}/run", path, set_, preset=preset)
            PLAN.do(opened, "scan", watch=watch)
            opened = choose(opened, watch) if choose else opened
            if opened.settings.data.classes:
                PLAN.do(opened, "classes", watch=watch)
            findings = advice(opened)
    print_result(findings, as_json, evaluation_tables.findings)
