"""Data of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capro.errors import RunError
from capro.pipeline.artefacts import CLEANED_LABELS
from capro.pipeline.run import Run
from capro.report import galleries, page
from capro.stages.report import report
from tests.fakes import fake_stage, rewrite
from tests.report.made import HELD_OUT, SIZE, collected, make_run


def test_the_data_is_json_and_complete(data: Any) -> None:
    json.dumps(data, allow_nan=False)
    assert set(data["missing"]) == {"pixels", "graph"}  # implicit stages that the made-up run has no files of
    assert data["noise"]["total"] == {"anchor": 8, "keep": 33, "away": 5, "arrived": 5, "drop": 2}
    assert [part["name"] for part in data["summary"]] == [
        "What came in",
        "What was wrong with it",
        "What was done",
        "What it brought",
    ]
    assert "judges 15\xa0% of the web labels to be wrong" in data["summary"][1]["text"]
    assert len(data["map"]["items"]) == SIZE
    assert all(place is not None for place in data["samples"]["place"])
    first = data["matches"]["classes"][0]
    marked = [n for n, anchor in zip(first["text"], first["text_anchor"], strict=True) if anchor]
    assert {data["samples"]["id"][n][-7:] for n in marked} == {"000.png", "004.png"}


def test_too_many_samples_for_a_graph_of_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "GRAPH_LIMIT", 10)
    data = collected(run)
    assert data["matches"]["columns"] == ["text"]
    assert "more than 10 images: smoothed, reranked" in page.render(data)


def test_several_labels(tmp_path: Path) -> None:
    data = collected(make_run(tmp_path, multi=True))
    assert data["noise"]["total"] == {"anchor": 8, "keep": 85, "away": 1, "arrived": 2, "drop": 2}
    assert data["confusion"] is None
    assert data["threshold"]["capro"]["recall"][0] == 1
    assert "labels were missing" in data["summary"][1]["text"]
    text = page.render(data)
    assert "there is no confusion matrix" in text
    assert "From which probability" in text


def test_evidence_is_what_the_verdicts_hold(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parts = collected(run)["galleries"]["classes"][0]["parts"]
    assert all(text.startswith("Kept as") for text in parts["keep"]["evidence"])


# --- what is missing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upto", "absent", "present"),
    [
        ("scan", "The clean stage has not finished", "48 training images"),
        ("embed", "The clean stage has not finished", "map-figure"),
        ("clean", "The evaluate stage has not finished", "class-list"),
    ],
)
def test_what_has_not_run_is_said(tmp_path: Path, upto: str, absent: str, present: str) -> None:
    text = page.render(collected(make_run(tmp_path, upto=upto)))
    assert absent in text
    assert present in text


def test_without_a_test_split(tmp_path: Path) -> None:
    data = collected(make_run(tmp_path, test=False))
    assert data["comparison"] is None
    assert "no test split" in data["summary"][3]["text"]
    assert "no test split" in page.render(data)


def test_arrays_of_another_scan_are_not_mixed_in(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rewrite(run, CLEANED_LABELS, np.zeros(7, np.int64))
    data = collected(run)
    assert data["noise"] is None
    assert "does not fit the scan" in data["missing"]["clean"]


def test_the_threshold_of_held_out_data_is_shown_while_it_fits_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = report(run)
    assert collected(run)["held_out"] is None
    fake_stage(run, "threshold/capro", lambda _: HELD_OUT)
    chosen = collected(run)["held_out"]
    assert chosen["threshold"] == 0.37
    assert "1,200 samples: the val split; no test image" in chosen["text"]
    before = path.read_text("utf-8")
    assert report(run).read_text("utf-8") != before  # not skipped as fresh
    fake_stage(run, "finetune", lambda _: None, model="another")
    assert collected(run)["held_out"] is None
    nothing = {**HELD_OUT, "threshold": None}
    fake_stage(run, "threshold/capro", lambda _: nothing, found="none")
    assert collected(run)["held_out"] is None


def test_a_run_without_a_scan_is_an_error(tmp_path: Path, run: Run) -> None:
    with pytest.raises(RunError, match="the scan stage has not finished"):
        report(Run.create(tmp_path / "new", run.settings))
