"""Running a grid: every row and seed is a run over one store, so nothing is done twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from capro.bench import figure, measure
from capro.bench.baselines.registry import BASELINES, baseline
from capro.bench.derived import known_names, known_plan
from capro.bench.grids import PAPER, GridRow, Table, row_settings, table_of
from capro.bench.published import MULTI, SINGLE
from capro.bench.store import SharedRun, only_one
from capro.bench.summary import Measured, TableResult, csv_text, results_csv, results_markdown, suffixes
from capro.config import Settings, TrainSettings
from capro.data.manifest import manifest_of
from capro.errors import CaproError, ConfigError, DataError, did_you_mean
from capro.models.classes import load_classes, save_classes
from capro.pipeline.artefacts import write_text
from capro.pipeline.plan import Plan
from capro.pipeline.progress import SILENT, Watch
from capro.stages import PLAN

METRICS = {"single": SINGLE, "multi": MULTI, "openset": ("C-F1 mean", "C-F1 best", "C-F1 held-out")}


@dataclass(frozen=True)
class Bench:
    """A folder with the store, the runs and the tables of one dataset.

    Args:
        folder: Holds ``store/``, ``runs/`` and ``tables/``.
        settings: Of the default row; rows override some.
        seeds: Every row is run with each.
        given: Run directories whose stages may be taken.
        novel: Class list of the open-set table; half of the classes if unset.
        product: Name of the row with the settings as given.
        command: Printed in the tables.
        watch: Where progress is shown.
    """

    folder: Path
    settings: Settings
    seeds: Sequence[int]
    given: Sequence[Path] = ()
    novel: Path | None = None
    product: str = "capro, settings as given"
    command: str = ""
    watch: Watch = SILENT

    def run_of(self, table: str, label: str, overrides: Sequence[str], seed: int) -> SharedRun:
        """The run directory of one row and seed."""
        settings = row_settings(self.settings, [*overrides, f"seed={seed}"])
        name = re.sub(r"[^\w.+-]+", "-", label).strip("-").lower()
        return SharedRun.make(
            self.folder / "runs" / table / name / f"seed{seed}",
            settings,
            store=self.folder / "store",
            given=self.given,
        )

    def measure(self, run: SharedRun, row: GridRow, plan: Plan = PLAN) -> dict[str, float]:
        """Do all stages of a row; its figures on each test set. What goes before step 2 all rows of a seed share."""
        plan.do(run, "scan", "pretrain", watch=self.watch)
        if not len(manifest_of(run).split("test")):
            raise DataError("the data have no test split", hint="give one with --set data.test=PATH")
        if row.baseline is not None:
            baseline(run, row.baseline, watch=self.watch, plan=plan)
        else:
            _need_updates(run.settings.train)
            names = plan.all_names(run)
            plan.do(run, *names[names.index("pretrain") + 1 :], watch=self.watch)
        return measure.figures_by_test_set(run, row.baseline)


def _need_updates(train: TrainSettings) -> None:
    """Refuse a row whose prototypes nobody would polish: it would say nothing about how often they are updated."""
    if train.update_every > train.epochs:
        raise ConfigError(
            f"prototypes are updated every {train.update_every} epochs, and step 2 has {train.epochs} epochs",
            hint=f"give it {train.update_every} epochs or more: --set train.epochs={2 * train.update_every}",
        )


def bench(work: Bench, name: str, *, rows: Sequence[str] = ()) -> dict[str, Any]:
    """Run a table's grid and write ``tables/NAME.md``, ``.csv`` and ``.svg``; returns the same as data.

    Args:
        work: Folder, settings and seeds.
        name: Table.
        rows: Labels of the rows to run beside the one they are compared with; all if empty.
    """
    table = table_of(name).with_product(work.product)
    chosen = _chosen(table, rows)
    with only_one(work.folder):
        if table.kind == "cost":
            return _cost(work, table)
        return _accuracy(work, table, chosen)


def _chosen(table: Table, rows: Sequence[str]) -> list[GridRow]:
    labels = [row.label for row in table.rows]
    unknown = [label for label in rows if label not in labels]
    if unknown:
        raise ConfigError(
            f"table {table.name} has no row '{unknown[0]}'", hint=did_you_mean(unknown[0], labels)
        )
    return [row for row in table.rows if not rows or row.label in (*rows, table.against)]


def _accuracy(work: Bench, table: Table, rows: Sequence[GridRow]) -> dict[str, Any]:
    measured = {
        row.label: Measured(row.label, paper=row.paper, x=row.x, remark=_remark(work, row)) for row in rows
    }
    curves: dict[str, list[measure.Curves]] = {row.label: [] for row in rows}
    total = len(work.seeds) * len(rows)
    for number, (seed, row) in enumerate(product(work.seeds, rows), start=1):
        work.watch.say(f"[{number}/{total}] {table.name}: {row.label}, seed {seed}")
        try:
            if table.kind == "openset":
                figures, of_row = _open_row(work, table, row, seed)
                curves[row.label].append(of_row)
            else:
                run = work.run_of(table.name, row.label, row.overrides, seed)
                figures = work.measure(run, row)
        except CaproError as error:
            hint = f" ({error.hint})" if error.hint else ""
            measured[row.label].problem = " ".join(f"{error}{hint}".split())
            work.watch.say(f"  not run: {measured[row.label].problem}")
            if row.label == table.against:
                raise  # nothing to compare with
            continue
        measured[row.label].figures[seed] = figures
        _write(work, table, measured, curves)  # what is there can be read while it runs
    return _write(work, table, measured, curves)


def _remark(work: Bench, row: GridRow) -> str:
    """What a row has beyond the others: MentorNet's data-driven form and CleanNet learn from verified samples."""
    learns = row.baseline is not None and BASELINES[row.baseline].verified != "never"
    return "has seen verified labels" if learns and work.settings.baselines.verified else ""


def _write(
    work: Bench, table: Table, measured: dict[str, Measured], curves: dict[str, list[measure.Curves]]
) -> dict[str, Any]:
    known = next(iter(measured[table.against].figures.values()), {})
    kind = "openset" if table.kind == "openset" else "single" if "top1" in known else "multi"
    result = TableResult(
        table.name,
        table.title,
        list(measured.values()),
        [f"{metric}{name}" for name in suffixes(known) for metric in METRICS[kind]],
        table.against,
        work.seeds,
        axis=table.axis,
        note=table.note,
        command=work.command,
    )
    rows = {row.label: {"figures": row.figures, "problem": row.problem} for row in result.rows}
    files = {"md": results_markdown(result), "csv": results_csv(result), "svg": figure.draw(result)}
    means = measure.mean_curves(curves)
    if means:
        write_text(work.folder / "tables" / f"{table.name}-curves.csv", measure.curves_csv(means))
    for number, (name, by_row) in enumerate(means.items(), start=1):  # a figure for each test set
        end = "svg" if number == 1 else f"{number}.svg"
        files[end] = figure.curves(f"{table.title}{name}", by_row)
    return _written(work, table, files) | {"rows": rows}


def _written(work: Bench, table: Table, files: dict[str, str]) -> dict[str, Any]:
    """Write a table's files, by their suffix."""
    base = work.folder / "tables" / table.name
    for end, text in files.items():
        write_text(base.with_suffix(f".{end}"), text)
    return {"table": table.name, "files": [str(base.with_suffix(f".{end}")) for end in files]}


# --- open set -------------------------------------------------------------------------------------


def _open_row(work: Bench, table: Table, row: GridRow, seed: int) -> tuple[dict[str, float], measure.Curves]:
    """A row of the open-set table: the same pipeline on the known classes alone."""
    # as the rows: its features have key views, whatever the preset
    base = work.run_of(table.name, "all classes", PAPER, seed)
    PLAN.do(base, "scan", watch=work.watch)
    if base.settings.net.mode == "frozen":
        PLAN.do(base, "features", watch=work.watch)
    known = known_names(base, work.novel, work.folder, seed=work.settings.seed, watch=work.watch)
    overrides = list(row.overrides)
    if work.settings.data.classes:
        specs = load_classes(Path(work.settings.data.classes))
        known_specs = work.folder / "openset" / "classes.yaml"
        save_classes(known_specs, [spec for spec in specs if spec.name in known])
        overrides.append(f"data.classes={known_specs}")
    run = work.run_of(table.name, row.label, overrides, seed)
    plan = known_plan(base, known, seed=work.settings.seed)
    work.measure(run, row, plan)
    return measure.open_figures(run, row)


# --- cost -----------------------------------------------------------------------------------------


def _cost(work: Bench, table: Table) -> dict[str, Any]:
    seed = work.seeds[0]
    runs: dict[str, SharedRun] = {}
    for number, row in enumerate(table.rows, start=1):
        work.watch.say(f"[{number}/{len(table.rows)}] cost: reference {row.label}, seed {seed}")
        run = work.run_of("reference", row.label, row.overrides, seed)
        work.measure(run, row)
        runs[row.label] = run
    ours = next(row.label for row in table.rows if "train.reference=cb" in row.overrides[-1:])
    parts = measure.costs_of(runs[ours], runs)
    samples = len(manifest_of(runs[ours]).split("train"))
    timed = [(part.name, part.seconds) for part in parts if part.seconds is not None]
    files = {
        "md": measure.cost_markdown(table.title, parts, samples, work.command),
        "csv": csv_text(measure.Part._fields, parts),
        "svg": figure.bars("Seconds of each part", timed, "s"),
    }
    return _written(work, table, files) | {"parts": [part._asdict() for part in parts]}
