"""Decisions to and from files: Parquet, CSV, and Label Studio's JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pandas as pd

from capro.data.manifest import manifest_of
from capro.data.readers.table_files import header, whole_records
from capro.data.readers.writing import write_csv
from capro.errors import DataError, did_you_mean, first_line, shortened
from capro.files import read_regular
from capro.models.classes import classes_of
from capro.pipeline.artefacts import atomic_path, write_json, write_table
from capro.pipeline.run import Run
from capro.review.log import Action, Answer, Decision, open_log, person, replayed
from capro.wording import many

T = TypeVar("T")
SEPARATOR = "|"
KINDS = (".parquet", ".csv", ".json")
LISTS = ("labels", "not_labels", "given_labels", "proposed_labels")
STUDIO = "export it from Label Studio as JSON, not JSON-MIN, from a project with choices"
COLUMNS = ("id", "answer", *LISTS, "complete", "anchor", "random", "who", "when")
SPECIAL: dict[str, str] = {"out": "(none of these)", "copy": "(near duplicate)", "unsure": "(not sure)"}


def export_decisions(run: Run, path: Path, *, warn: Callable[[str], None] = lambda _: None) -> int:
    """Write the present decisions of a run; the ending of the name says the format. Returns their number.

    What is damaged in the log is left out and named: so the others can be saved.
    """
    kind = _kind(path)
    replay = replayed(run, leave_out=True)
    for text in replay.damaged:
        warn(f"{text}; it is left out")
    if not path.absolute().parent.is_dir():
        raise DataError(f"{path.parent}: no such folder", hint="make it, or choose another place")
    rows = []
    for sample, each in replay.decided().items():
        last = next(a for a, _, undone in reversed(replay.history(sample)) if not undone)
        rows.append(_row(each, last))
    if kind == ".json":
        write_json(path, [_task(row, run) for row in rows])
        return len(rows)
    frame = pd.DataFrame(rows, columns=[*COLUMNS])
    if kind == ".csv":
        for name in LISTS:
            frame[name] = [SEPARATOR.join(names) for names in frame[name]]
        with atomic_path(path) as temporary:
            write_csv(temporary, frame)
    else:
        write_table(path, frame)
    return len(rows)


def import_decisions(run: Run, path: Path) -> int:
    """Append the decisions of a file to a run's log as one action; returns their number."""
    kind = _kind(path)
    if not path.exists():
        raise DataError(f"{path}: no such file", hint="give a file that `capro review RUN --export` wrote")
    rows = _from_tasks(path) if kind == ".json" else _from_table(path)
    samples = manifest_of(run).samples
    known = set(samples["id"][samples["split"] == "train"])
    names = [spec.name for spec in classes_of(run)]
    several = manifest_of(run).task == "multi"
    found = [_decision(row, place, names, several=several) for place, row in rows]
    missing = [each.sample for each in found if each.sample not in known]
    if missing:
        raise DataError(
            f"{path}: {many(len(missing), 'id')} of no training sample, for example {missing[0]!r}",
            hint="import decisions of the same data",
        )
    log = open_log(run)
    if found:
        log.decide(found, who=person(), shown={"verb": "import", "file": path.name, "count": len(found)})
    log.close()
    return len(found)


def _kind(path: Path) -> str:
    if path.suffix.lower() not in KINDS:
        raise DataError(
            f"{path}: this file ending is not known", hint=f"use {', '.join(KINDS)} (.json is Label Studio's)"
        )
    return path.suffix.lower()


def _row(each: Decision, action: Action) -> dict[str, Any]:
    return {
        "id": each.sample,
        "answer": each.answer,
        "labels": [*each.yes],
        "not_labels": [*each.no],
        "given_labels": [*each.given],
        "proposed_labels": [*each.proposed],
        "complete": each.whole,
        "anchor": each.anchor,
        "random": each.random,
        "who": action.who,
        "when": datetime.fromtimestamp(action.at, UTC).isoformat(timespec="seconds"),
    }


def _decision(row: Mapping[str, Any], place: str, names: list[str], *, several: bool) -> Decision:
    answer = str(row.get("answer"))
    if answer not in get_args(Answer):
        raise DataError(f"{place}: the answer is {answer!r}", hint=did_you_mean(answer, get_args(Answer)))
    lists = {name: _names(row.get(name), f"{place}: {name}") for name in LISTS}
    for name in (*lists["labels"], *lists["not_labels"]):
        if name not in names:
            raise DataError(f"{place}: no class {name!r}", hint=did_you_mean(name, names))
    if answer == "labels" and not several and len(lists["labels"]) != 1:
        raise DataError(
            f"{place}: {many(len(lists['labels']), 'label')}", hint="samples of this run have one label"
        )
    return Decision(
        str(row.get("id")), answer, lists["labels"], lists["not_labels"],  # type: ignore[arg-type]
        _flag(row.get("complete"), True), _flag(row.get("anchor"), False),
        lists["given_labels"], lists["proposed_labels"], _flag(row.get("random"), False),
    )  # fmt: skip


def _empty(cell: Any) -> bool:
    return (
        cell is None or (isinstance(cell, str) and not cell) or (isinstance(cell, float) and math.isnan(cell))
    )


def _names(cell: Any, place: str) -> tuple[str, ...]:
    """Names in a cell: separated, or a list."""
    if _empty(cell):
        return ()
    if isinstance(cell, str):
        return tuple(name for name in cell.split(SEPARATOR) if name)
    if not isinstance(cell, list | tuple | np.ndarray) or not all(isinstance(name, str) for name in cell):
        raise DataError(
            f"{place} are {shortened(cell)}, not names", hint="give the names of classes, as a list or a text"
        )
    return tuple(map(str, cell))


def _flag(cell: Any, default: bool) -> bool:
    if _empty(cell):
        return default
    return str(cell).lower() in ("true", "1", "1.0")


def _from_table(path: Path) -> list[tuple[str, dict[str, Any]]]:
    columns = header(path)
    absent = [name for name in ("id", "answer", "labels") if name not in columns]
    if absent:
        raise DataError(f"{path}: no column {absent[0]!r}", hint="add the columns id, answer and labels")
    return [(f"{path}: row {record.number}", dict(record.cells)) for record in whole_records(path)]


# --- Label Studio ---------------------------------------------------------------------------------


def _task(row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """A task with one annotation of choices, as Label Studio exports and imports it."""
    choices = row["labels"] if row["answer"] == "labels" else [SPECIAL[row["answer"]]]
    value = {"choices": [*choices]}
    result = [{"from_name": "label", "to_name": "image", "type": "choices", "value": value}]
    kept = {name: row[name] for name in COLUMNS if name not in ("id", "labels")}
    return {
        "data": {"image": row["id"], "id": row["id"], "run": run.path.name},
        "annotations": [{"created_at": row["when"], "result": result}],
        "meta": {"capro": kept},
    }


def _from_tasks(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        tasks = json.loads(read_regular(path).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not JSON: {first_line(error)}", hint="export it from Label Studio as JSON"
        ) from None
    if not isinstance(tasks, list):
        raise DataError(f"{path}: not a list of tasks", hint=STUDIO)
    found = []
    for number, task in enumerate(tasks, start=1):
        place = f"{path}: task {number}"
        found += [(place, row) for row in _annotated(task, place)]
    return found


def _annotated(task: Any, place: str) -> Iterable[dict[str, Any]]:
    """The row of a task that somebody has annotated; the last annotation that was not cancelled counts."""
    given = _part(task, dict, place, "the task")
    made = [
        _part(each, dict, place, "an annotation")
        for each in _part(given.get("annotations"), list, place, "annotations")
    ]
    made = [each for each in made if not each.get("was_cancelled")]
    if not made:
        return
    results = [
        _part(each, dict, place, "a result")
        for each in _part(made[-1].get("result"), list, place, "the result")
    ]
    chosen = [each for each in results if each.get("type") == "choices"]
    if results and not chosen:
        raise DataError(f"{place}: its annotation has no choices", hint=STUDIO)
    choices: list[str] = []
    for each in chosen:
        value = _part(each.get("value"), dict, place, "the value of a result")
        choices += _names(value.get("choices"), f"{place}: choices")
    special = {text: answer for answer, text in SPECIAL.items()}
    answer = next((special[name] for name in choices if name in special), "labels")
    kept = _part(_part(given.get("meta"), dict, place, "meta").get("capro"), dict, place, "meta.capro")
    labels = [name for name in choices if name not in special]
    data = _part(given.get("data"), dict, place, "data")
    yield {**kept, "id": data.get("id", data.get("image")), "answer": answer, "labels": labels}


def _part(value: Any, kind: type[T], place: str, what: str) -> T:
    """A part of a task, empty where it is not there; one of another form is refused."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        name = "mapping" if kind is dict else "list"
        raise DataError(f"{place}: {what} is no {name} but {shortened(value)}", hint=STUDIO)
    return value
