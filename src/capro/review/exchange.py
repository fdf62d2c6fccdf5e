"""Decisions to and from files: Parquet, CSV, and Label Studio's JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError

from capro.data.manifest import manifest_of
from capro.data.readers.base import write_csv
from capro.data.readers.table_files import header, whole_records
from capro.errors import DataError, did_you_mean, first_line, first_problem, shortened
from capro.files import read_regular
from capro.models.classes import classes_of
from capro.pipeline.artefacts import atomic_path, write_json, write_table
from capro.pipeline.locks import current_user
from capro.pipeline.run import Run
from capro.review.answers import ANSWERS, Decision
from capro.review.log import open_log, replayed
from capro.wording import many

SEPARATOR = "|"  # of the names in a cell of a CSV
FORMATS = (".parquet", ".csv", ".json")
# columns of the tables, and the fields of a decision that they hold
LISTS = {"labels": "yes", "not_labels": "no", "given_labels": "given", "proposed_labels": "proposed"}
FLAGS = {"complete": "whole", "anchor": "anchor", "random": "random"}
COLUMNS = ("id", "answer", *LISTS, *FLAGS, "who", "when")
STUDIO = "export it from Label Studio as JSON, not JSON-MIN, from a project with choices"


def export_decisions(run: Run, path: Path, *, warn: Callable[[str], None] = lambda _: None) -> int:
    """Write the present decisions of a run; the ending of the name says the format. Returns their number.

    What is damaged in the log is left out and named, so that the others can be saved.
    """
    ending = _ending(path)
    replay = replayed(run, leave_out=True)
    for text in replay.damaged:
        warn(f"{text}; it is left out")
    if not path.absolute().parent.is_dir():
        raise DataError(f"{path.parent}: no such folder", hint="make it, or choose another folder")
    rows = []
    for sample, decision in replay.decided().items():
        last = next(action for action, _, undone in reversed(replay.history(sample)) if not undone)
        rows.append(
            {
                "id": sample,
                "answer": decision.answer,
                **{column: [*getattr(decision, field)] for column, field in LISTS.items()},
                **{column: getattr(decision, field) for column, field in FLAGS.items()},
                "who": last.person,
                "when": datetime.fromtimestamp(last.time, UTC).isoformat(timespec="seconds"),
            }
        )
    frame = pd.DataFrame(rows, columns=[*COLUMNS])
    if ending == ".json":
        write_json(path, [_task(row, run) for row in rows])
    elif ending == ".csv":
        for name in LISTS:
            frame[name] = [SEPARATOR.join(names) for names in frame[name]]
        with atomic_path(path) as temporary:
            write_csv(temporary, frame)
    else:
        write_table(path, frame)
    return len(rows)


def import_decisions(run: Run, path: Path) -> int:
    """Append the decisions of a file to a run's log as one action; returns their number."""
    ending = _ending(path)
    if not path.exists():
        raise DataError(f"{path}: no such file", hint="give a file that `capro review RUN --export` wrote")
    manifest = manifest_of(run)
    known = set(manifest.samples["id"][manifest.samples["split"] == "train"])
    classes = [spec.name for spec in classes_of(run)]
    rows = _from_tasks(path) if ending == ".json" else _from_table(path)
    decisions = [_decision(row, where, classes, multi_label=manifest.multi_label) for where, row in rows]
    missing = [decision.sample for decision in decisions if decision.sample not in known]
    if missing:
        raise DataError(
            f"{path}: {many(len(missing), 'id')} of no training sample, for example {missing[0]!r}",
            hint="import decisions of the same data",
        )
    log = open_log(run)
    if decisions:
        context = {"verb": "import", "file": path.name, "count": len(decisions)}
        log.decide(decisions, person=current_user(), context=context)
    log.close()
    return len(decisions)


def _ending(path: Path) -> str:
    if path.suffix.lower() not in FORMATS:
        raise DataError(
            f"{path}: this file ending is not known",
            hint=f"use {', '.join(FORMATS)} (.json is Label Studio's)",
        )
    return path.suffix.lower()


def _decision(row: Mapping[str, Any], where: str, classes: list[str], *, multi_label: bool) -> Decision:
    answer = str(row.get("answer"))
    if answer not in ANSWERS:
        raise DataError(f"{where}: the answer is {answer!r}", hint=did_you_mean(answer, ANSWERS))
    lists: dict[str, Any] = {
        field: _names(row.get(column), f"{where}: {column}") for column, field in LISTS.items()
    }
    flags: dict[str, Any] = {
        field: _flag(row.get(column), getattr(Decision, field)) for column, field in FLAGS.items()
    }
    for name in (*lists["yes"], *lists["no"]):
        if name not in classes:
            raise DataError(f"{where}: no class {name!r}", hint=did_you_mean(name, classes))
    if answer == "labels" and not multi_label and len(lists["yes"]) != 1:
        raise DataError(
            f"{where}: {many(len(lists['yes']), 'label')}", hint="samples of this run have one label"
        )
    return Decision(str(row.get("id")), answer, **lists, **flags)


def _empty(cell: Any) -> bool:
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _names(cell: Any, where: str) -> tuple[str, ...]:
    """Names in a cell: a list, or a text with separators."""
    if _empty(cell):
        return ()
    if isinstance(cell, str):
        return tuple(name for name in cell.split(SEPARATOR) if name)
    if not isinstance(cell, list) or not all(isinstance(name, str) for name in cell):
        raise DataError(
            f"{where} are {shortened(cell)}, not names", hint="give the names of classes, as a list or a text"
        )
    return tuple(cell)


def _flag(cell: Any, default: bool) -> bool:
    return default if _empty(cell) else str(cell).lower() in ("true", "1", "1.0")


def _from_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table, each with where it is, for messages."""
    columns = header(path)
    absent = [name for name in ("id", "answer", "labels") if name not in columns]
    if absent:
        raise DataError(f"{path}: no column {absent[0]!r}", hint="add the columns id, answer and labels")
    for record in whole_records(path):
        yield f"{path}: row {record.number}", dict(record.cells)


# --- Label Studio ---------------------------------------------------------------------------------


class _Value(BaseModel):
    choices: list[str] = []


class _Result(BaseModel):
    type: str | None = None
    value: _Value | None = None


class _Annotation(BaseModel):
    was_cancelled: bool | None = None
    result: list[_Result] | None = None


class _Meta(BaseModel):
    capro: dict[str, Any] | None = None  # the other columns of a decision that capro exported


class _Task(BaseModel):
    data: dict[str, Any] | None = None
    annotations: list[_Annotation] | None = None
    meta: _Meta | None = None


def _task(row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """A task with one annotation of choices, as Label Studio exports and imports it."""
    choice = ANSWERS[row["answer"]].choice
    value = {"choices": [choice] if choice else row["labels"]}
    result = [{"from_name": "label", "to_name": "image", "type": "choices", "value": value}]
    return {
        "data": {"image": row["id"], "id": row["id"], "run": run.path.name},
        "annotations": [{"created_at": row["when"], "result": result}],
        "meta": {"capro": {name: row[name] for name in COLUMNS if name not in ("id", "labels")}},
    }


def _from_tasks(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row for each task that somebody has annotated, with where it is, for messages."""
    try:
        tasks = json.loads(read_regular(path).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not JSON: {first_line(error)}", hint="export it from Label Studio as JSON"
        ) from None
    if not isinstance(tasks, list):
        raise DataError(f"{path}: not a list of tasks", hint=STUDIO)
    for number, values in enumerate(tasks, start=1):
        where = f"{path}: task {number}"
        try:
            task = _Task.model_validate(values)
        except ValidationError as error:
            raise DataError(f"{where}: {first_problem(error)}", hint=STUDIO) from None
        annotations = [each for each in task.annotations or () if not each.was_cancelled]
        if annotations:  # the last one counts
            yield where, _annotated(task, annotations[-1].result or [], where)


def _annotated(task: _Task, results: list[_Result], where: str) -> dict[str, Any]:
    chosen = [result for result in results if result.type == "choices"]
    if results and not chosen:
        raise DataError(f"{where}: its annotation has no choices", hint=STUDIO)
    choices = [name for result in chosen if result.value for name in result.value.choices]
    answer_of = {kind.choice: name for name, kind in ANSWERS.items() if kind.choice}
    answers = [answer_of[name] for name in choices if name in answer_of]
    data, own = task.data or {}, (task.meta and task.meta.capro) or {}
    return {
        **own,
        "id": data.get("id", data.get("image")),
        "answer": answers[0] if answers else "labels",
        "labels": [name for name in choices if name not in answer_of],
    }
