"""Everything a user relies on, of tiny runs: verdicts, evaluation, report, advice, exports, review answers.

    python -m tests.golden.record     writes the files again, after a change that is meant

Single-label and multi-label; the paper's method with the encoder frozen and learning, and the method plus.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq

from capro.cli import main as command_line
from capro.pipeline.artefacts import ANCHORS, VERDICTS
from capro.pipeline.run import Run
from capro.report.collect import collect
from capro.results import doctor
from capro.stages import PLAN, run_all
from capro.stages.evaluate import evaluate
from capro.stages.report import HELD_OUT
from tests import squares

HERE = Path(__file__).parent
CASES = [f"{task}-{mode}" for task in ("single", "multi") for mode in ("frozen", "full", "plus")]
FORMATS = ("csv", "parquet", "hf", "folder", "fiftyone", "webdataset")

FULL = ["net.mode=full", "pretrain.epochs=2", "train.epochs=2", "train.frozen_epochs=1"]
MOVING = ("made", "title", "version", "sheets")  # of the report's data: the time, our version, pixels


def make(case: str, folder: Path) -> Run:
    """A finished run of a case."""
    multi = case.startswith("multi")
    data = squares.write_data(folder / "data", multi=multi, novel=not multi, noise=3)
    changed = [*(FULL if case.endswith("full") else []), *(["train.gamma=0.55"] if multi else [])]
    changed += ["method=plus"] if case.endswith("plus") else []
    run = Run.create(folder / "run", squares.settings(data, *changed, multi=multi))
    run_all(run)
    return run


def record(case: str, folder: Path) -> dict[str, Any]:
    """What a case gives, as plain data."""
    run = make(case, folder)
    truth = folder / "data" / "train_truth.csv"
    details = evaluate(run, truth=truth)
    data = collect(run, PLAN, held_out=HELD_OUT)
    for name in MOVING:
        data.pop(name)
    data["stages"] = [row["name"] for row in data["stages"]]
    data["map"] = {"items": data["map"]["items"], "of": data["map"]["of"]}  # t-SNE amplifies rounding
    return plain(
        {
            "verdicts": run.issues().to_dict("records"),
            "pairs": run.read(VERDICTS).to_dict("records"),
            "anchors": run.read(ANCHORS).to_dict("records"),
            "results": run.result("evaluate"),
            "details": details,
            "report": data,
            "doctor": doctor.advice(run),
            **after_the_run(case, run.path, folder),
        }
    )


def after_the_run(case: str, run: Path, folder: Path) -> dict[str, Any]:
    """What commands make of a finished run; full runs leave it to the frozen ones, which differ in nothing here."""
    if case.endswith("full"):
        return {}
    exports = {name: exported(run, folder / "exports" / name, name) for name in FORMATS}
    return {"exports": exports, "review": reviewed(run, folder)}


def capro(*words: object) -> None:
    """A command as a user types it."""
    with patch.object(sys, "argv", ["capro", *map(str, words)]):
        try:
            command_line()
        except SystemExit as left:
            if left.code:
                raise RuntimeError(f"capro {' '.join(map(str, words))}: exit code {left.code}") from None


def exported(run: Path, out: Path, name: str) -> dict[str, Any]:
    """The files of an export, and what is in the tables among them."""
    capro("export", run, "--out", out, "--to", name)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {"files": [path.relative_to(out).as_posix() for path in files], "tables": dict(tables(out, files))}


def tables(out: Path, files: list[Path]) -> Iterator[tuple[str, Any]]:
    """The rows of each table, without pictures and absolute paths."""
    for path in files:
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                rows: list[Any] = [*csv.DictReader(file)]
        elif path.suffix == ".parquet":
            columns = [name for name in pq.read_schema(path).names if name != "image"]
            rows = pq.read_table(path, columns=columns).to_pylist()
        elif path.name == "labels.json":
            rows = [json.loads(path.read_text("utf-8"))]
        else:
            continue
        yield path.relative_to(out).as_posix(), json.loads(json.dumps(rows).replace(str(out.parents[1]), "."))


def reviewed(run: Path, folder: Path) -> dict[str, Any]:
    """Answers of a person, read from a file, and the verdicts that follow."""
    ids = Run.open(run).issues()["id"].tolist()
    answers = folder / "answers.csv"
    with answers.open("w", newline="") as file:
        rows = [
            [ids[0], "labels", "azure"],
            [ids[5], "out", ""],
            [ids[20], "unsure", ""],
            [ids[7], "copy", ""],
        ]
        csv.writer(file).writerows([["id", "answer", "labels"], *rows])
    capro("review", run, "--import", answers)
    written = folder / "decisions.csv"
    capro("review", run, "--export", written)
    with written.open(newline="") as file:
        decisions = [{**row, "when": "", "who": ""} for row in csv.DictReader(file)]
    capro("run", "--run", run)
    return {"decisions": decisions, "verdicts": Run.open(run).issues().to_dict("records")}


def plain(value: Any) -> Any:
    """JSON's types; floats to six digits."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if value != value else round(value, 6)
    return value


def main() -> None:
    """Write the files."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = record(case, Path(folder))
        (HERE / f"{case}.json").write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
        print(case)


if __name__ == "__main__":
    main()
