"""Decisions to files and back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from capro.errors import DataError
from capro.pipeline.run import Run
from capro.review.exchange import export_decisions, import_decisions
from capro.review.log import replayed
from capro.review.session import ReviewSession
from capro.review.views import View
from tests.made_up import CLASSES


@pytest.fixture
def decided(run: Run) -> Run:
    session = ReviewSession(run)
    view = View()
    session.decide([0], "label", CLASSES[1], person="me", view=view)
    session.decide([1, 2], "out", None, person="me", view=view)
    session.decide([3], "unsure", None, person="me", view=view)
    session.decide([4, 5], "best", None, person="me", view=view)
    session.decide([6], "anchor", None, person="me", view=view)
    session.log.close()
    return run


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_what_is_exported_can_be_imported(decided: Run, single_run: Run, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"decisions.{kind}"
    assert export_decisions(decided, file) == 6
    shutil.copytree(single_run.path, tmp_path / "other")
    other = Run.open(tmp_path / "other")
    assert import_decisions(other, file) == 6
    assert replayed(other).decided() == replayed(decided).decided()


def test_label_studio_reads_choices(decided: Run, tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    export_decisions(decided, file)
    tasks = {task["data"]["id"]: task for task in json.loads(file.read_text("utf-8"))}
    result = [task["annotations"][0]["result"][0] for task in tasks.values()]
    assert {each["type"] for each in result} == {"choices"}
    assert result[0]["value"]["choices"] == [CLASSES[1]]
    assert result[1]["value"]["choices"] == ["(none of these)"]


def test_label_studio_of_others(run: Run, tmp_path: Path) -> None:
    session = ReviewSession(run)
    sample = session.table.sample_id(0)
    session.log.close()
    choice = {"type": "choices", "value": {"choices": [CLASSES[2]]}}
    tasks = [
        {"data": {"id": sample}, "annotations": [{"result": [choice]}]},
        {"data": {"id": session.table.sample_id(1)}, "annotations": []},
    ]
    file = tmp_path / "x.json"
    file.write_text(json.dumps(tasks), "utf-8")
    assert import_decisions(run, file) == 1
    assert replayed(run).decided()[sample].yes == (CLASSES[2],)


def _task(sample: str, *annotations: object, **more: object) -> dict[str, object]:
    return {"data": {"id": sample}, "annotations": [*annotations], **more}


def _chosen(*names: object) -> dict[str, object]:
    return {"result": [{"type": "choices", "value": {"choices": [*names]}}]}


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (5, "task 2: input should be a valid dictionary, got 5"),
        ({"annotations": {"a": 1}}, "task 2: annotations: input should be a valid list, got {'a': 1}"),
        ({"annotations": ["x"]}, "task 2: annotations.0: input should be a valid dictionary, got 'x'"),
        (
            {"annotations": [{"result": 5}]},
            "task 2: annotations.0.result: input should be a valid list, got 5",
        ),
        (
            {"annotations": [{"result": ["x"]}]},
            "task 2: annotations.0.result.0: input should be a valid dictionary, got 'x'",
        ),
        (
            {"annotations": [{"result": [{"type": "choices", "value": "x"}]}]},
            "task 2: annotations.0.result.0.value: input should be a valid dictionary, got 'x'",
        ),
        (
            _task("x", {"result": [{"type": "choices", "value": {"choices": 5}}]}),
            "task 2: annotations.0.result.0.value.choices: input should be a valid list, got 5",
        ),
        (
            _task("x", _chosen({"a": 1})),
            "task 2: annotations.0.result.0.value.choices.0: input should be a valid string, got {'a': 1}",
        ),
        (_task("x", {"result": [{"type": "rectanglelabels"}]}), "task 2: its annotation has no choices"),
        (
            {**_task("x", _chosen("cat")), "data": "x"},
            "task 2: data: input should be a valid dictionary, got 'x'",
        ),
        (_task("x", _chosen("cat"), meta=[1]), "task 2: meta: input should be a valid dictionary, got [1]"),
        (
            _task("x", _chosen("cat"), meta={"capro": "y"}),
            "task 2: meta.capro: input should be a valid dictionary, got 'y'",
        ),
        (_task("x", _chosen(CLASSES[0]), meta={"capro": {"not_labels": 5}}), "task 2: not_labels are 5"),
    ],
)
def test_tasks_of_another_form_are_refused_with_their_number(
    multi_run: Run, tmp_path: Path, task: object, text: str
) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps([_task("y"), task]), "utf-8")
    with pytest.raises(DataError, match=re.escape(text)):
        import_decisions(multi_run, file)
    assert replayed(multi_run).decided() == {}


def test_a_cancelled_annotation_decides_nothing(multi_run: Run, tmp_path: Path) -> None:
    session = ReviewSession(multi_run)
    samples = [session.table.sample_id(row) for row in range(2)]
    session.log.close()
    cancelled = {"was_cancelled": True, "result": []}
    file = tmp_path / "x.json"
    file.write_text(
        json.dumps([_task(samples[0], cancelled), _task(samples[1], _chosen(CLASSES[2]), cancelled)]), "utf-8"
    )
    assert import_decisions(multi_run, file) == 1
    assert replayed(multi_run).decided()[samples[1]].yes == (CLASSES[2],)


@pytest.mark.parametrize("labels", [1, [3]])
def test_labels_that_are_no_names_are_refused(run: Run, tmp_path: Path, labels: object) -> None:
    file = tmp_path / "x.parquet"
    pd.DataFrame({"id": ["x"], "answer": ["labels"], "labels": [labels]}).to_parquet(file)
    with pytest.raises(DataError, match=re.escape(f"x.parquet: row 1: labels are {labels}, not names")):
        import_decisions(run, file)


def test_several_labels_survive(multi_run: Run, tmp_path: Path) -> None:
    shutil.copytree(multi_run.path, tmp_path / "copy")
    session = ReviewSession(multi_run)
    session.decide([0], "add", CLASSES[2], person="me", view=View())
    session.decide([1], "accept", None, person="me", view=View())
    session.log.close()
    other = Run.open(tmp_path / "copy")
    file = tmp_path / "d.csv"
    export_decisions(multi_run, file)
    import_decisions(other, file)
    assert replayed(other).decided() == replayed(multi_run).decided()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [{"id": "nobody", "answer": "out", "labels": ""}],
            "1 id of no training sample, for example 'nobody'",
        ),
        ([{"id": "x", "answer": "perhaps", "labels": ""}], "row 1: the answer is 'perhaps'"),
        ([{"id": "x", "answer": "labels", "labels": "cow"}], "row 1: no class 'cow'"),
        ([{"id": "x", "answer": "labels", "labels": ""}], "row 1: 0 labels"),
        ([{"answer": "out", "labels": ""}], "no column 'id'"),
    ],
)
def test_a_wrong_file_is_refused_whole(
    run: Run, tmp_path: Path, rows: list[dict[str, str]], text: str
) -> None:
    file = tmp_path / "x.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    with pytest.raises(DataError, match=text):
        import_decisions(run, file)
    assert replayed(run).decided() == {}


def test_an_ending_that_says_nothing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file ending is not known"):
        export_decisions(run, tmp_path / "x.txt")
    with pytest.raises(DataError, match="no such file"):
        import_decisions(run, tmp_path / "x.csv")
    with pytest.raises(DataError, match="no such folder"):
        export_decisions(run, tmp_path / "none" / "x.csv")


def test_a_run_without_a_review_exports_nothing(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    assert export_decisions(run, file) == 0
    assert "answer" in pd.read_parquet(file).columns


def test_a_damaged_row_is_refused_with_its_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text('id,answer,labels\n"x,out,\ny,out,\n')
    with pytest.raises(DataError, match="line 2: a quote that is not closed"):
        import_decisions(run, file)
