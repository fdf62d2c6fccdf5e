"""What the report reads of a run, and what it says of the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.errors import RunError
from capro.pipeline.artefacts import CLEANED_LABELS
from capro.pipeline.run import Run
from capro.report import page
from capro.stages.report import report
from tests.fakes import fake_stage, rewrite
from tests.report.made import HELD_OUT, collected, make_run


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
