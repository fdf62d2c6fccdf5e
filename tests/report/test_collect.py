"""Data of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capro.pipeline.artefacts import VERDICTS
from capro.pipeline.run import Run
from capro.report import galleries, page
from tests.fakes import as_version_0_1_0
from tests.report.made import SIZE, collected, make_run


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
    as_version_0_1_0(run.folder("clean") / "stage.json")  # later ones would miss the file
    run.file(VERDICTS).unlink()
    without = collected(run)["galleries"]["classes"][0]["parts"]["keep"]["evidence"]
    assert set(without) == {""}  # the report writes no sentence of its own
