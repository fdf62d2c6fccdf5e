"""`capro evaluate` and the report show the same figures, because one function computes each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capro.pipeline.run import Run
from capro.results import comparison, metrics
from capro.results.comparison import test_split as samples_of
from capro.stages import run_all
from capro.stages.evaluate import evaluate
from tests import squares
from tests.report.made import collected


def finished(folder: Path, *, multi: bool) -> Run:
    """A tiny run; with one label its test split also holds samples of no known class."""
    data = squares.write_data(folder / "data", multi=multi, novel=not multi, noise=6)
    run = Run.create(folder / "run", squares.settings(data, multi=multi))
    run_all(run)
    return run


@pytest.fixture(scope="module", params=["single", "multi"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(tmp_path_factory.mktemp(request.param), multi=request.param == "multi")


def assert_same(details: Any, page: Any) -> None:
    """Every figure that both show."""
    for row in page["comparison"]["metrics"]:
        for method in ("vanilla", "capro"):
            assert row[method] == pytest.approx(details["methods"][method][row["name"]])
    for method in ("vanilla", "capro"):
        shown = page["reliability"][method]
        assert shown["ece"] == pytest.approx(details["methods"][method]["ECE"])
        assert shown["ece"] == pytest.approx(details["calibration"][method]["ece"])
        for name in ("confidence", "accuracy", "count"):
            assert shown[name] == [row[name] for row in details["calibration"][method]["bins"]]
    changes = {page["classes"][row["label"]]: row for row in page["comparison"]["changes"]}
    assert set(changes) == {row["class"] for row in details["classes"]}
    for row in details["classes"]:
        shown = changes[row["class"]]
        for one, other in (("before", "vanilla"), ("after", "capro"), ("change", "difference")):
            assert shown[one] == row[other]
        assert shown["samples"] == row["samples"]
    if page["task"] == "single":
        low, high = page["comparison"]["interval"]
        assert (low + high) / 2 == pytest.approx(details["difference"]["top1"], abs=1e-12)


def test_figures_are_the_same(run: Run) -> None:
    details, page = evaluate(run), collected(run)
    assert_same(details, page)
    assert page["comparison"]["tests"] == details["samples"]
    if page["task"] == "single":
        assert {row["name"] for row in page["comparison"]["metrics"]} >= {"top1", "top5"}
        assert details["open"] == 6


def test_open_samples_count_neither_in_the_gain_nor_in_its_interval(run: Run) -> None:
    found = samples_of(run)
    assert found is not None
    if found.labels.ndim == 2:
        assert collected(run)["comparison"]["interval"] is None
        return
    known = found.labels >= 0
    right = {name: (scores.argmax(axis=1) == found.labels)[known] for name, scores in found.scores.items()}
    each = right["capro"].astype(float) - right["vanilla"].astype(float)
    half = 1.96 * each.std(ddof=1) / np.sqrt(known.sum())
    shown = collected(run)["comparison"]["interval"]
    assert shown == pytest.approx((each.mean() - half, each.mean() + half))


def test_one_function_stands_behind_both(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are bent on their way into the metrics bend both: neither side has its own."""
    reliability, by_class, interval = metrics.reliability, metrics.by_class, comparison.paired_interval
    before, page = evaluate(run), collected(run)

    def shifted(*args: Any) -> Any:
        low, high = interval(*args)
        return low - 1, high + 1

    monkeypatch.setattr(metrics, "reliability", lambda scores, y: reliability(scores**2 / 2, y))
    monkeypatch.setattr(metrics, "by_class", lambda scores, y: by_class(1 - scores, y))
    monkeypatch.setattr(comparison, "paired_interval", shifted)
    details, bent = evaluate(run), collected(run)
    assert details["calibration"] != before["calibration"]
    assert details["classes"] != before["classes"]
    assert_same(details, bent)
    if page["task"] == "single":
        assert bent["comparison"]["interval"][0] == pytest.approx(page["comparison"]["interval"][0] - 1)
