"""Galleries of the report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capro import config
from capro.core.anchors import match
from capro.demo.run import DemoRun
from capro.pipeline.artefacts import CLASS_TEXTS, TEXTS
from capro.pipeline.run import Run
from capro.report import galleries, page
from capro.results.store import VerdictStore
from capro.train.setup import training_set
from tests.report.made import SIZE, collected


def test_galleries_say_how_many_of_how_many(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "PER_GALLERY", 3)
    monkeypatch.setattr(galleries, "MAP_POINTS", 20)
    data = collected(run)
    part = next(c for c in data["galleries"]["classes"] if c["label"] == 0)["parts"]["keep"]
    assert (len(part["items"]), part["total"]) == (3, 8)
    assert (len(data["map"]["items"]), data["map"]["of"]) == (20, SIZE)
    text = page.render(data)
    assert "20 of 48 training images are shown" in text
    assert "Up to 3 images of each kind" in text


def test_what_was_dropped_by_every_value_and_why(demo: DemoRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "PER_GALLERY", 3)
    store, shown = VerdictStore(demo.run), galleries.Shown()
    data = galleries.dropped(store, shown)
    assert data is not None
    rows = list(shown.index)
    counts = {level["value"]: level["dropped"] for level in data["levels"]}
    assert counts[data["now"]] == (store.corrected < 0).sum() > 0
    assert [*counts] == sorted(counts, reverse=True)
    assert [*counts.values()] == sorted(counts.values())
    for level in data["levels"]:
        assert len(level["items"]) == len(level["evidence"]) == min(3, level["total"])
        for number, evidence in zip(level["items"], level["evidence"], strict=True):
            assert (store.corrected[rows[number]] < 0) == (level["value"] >= data["now"])
            assert evidence.startswith("Dropped: ") == (level["value"] >= data["now"])


def test_a_method_without_the_setting_has_no_such_part(run: Run) -> None:
    data = collected(run)
    assert data["dropped"] is None
    assert "What was dropped, and why" not in page.render(data)


def test_many_classes_leave_out_those_with_least_change(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "GALLERY_BUDGET", 2 * 5 * galleries.LEAST)
    data = collected(run)
    assert len(data["galleries"]["classes"]) == 2
    assert "The 2 classes of 4 with most change" in page.render(data)


@pytest.mark.parametrize("own", [False, True])
def test_distances_of_matches_are_those_of_the_stage(run: Run, own: bool) -> None:
    """As `capro match` measures them, also where a text is in its own neighbourhood."""
    here = replace(run, settings=config.update(run.settings, [f"match.own_neighbour={own}", "match.k=3"]))
    training = training_set(here)
    found = match(
        np.asarray(here.read(TEXTS)), here.read(CLASS_TEXTS), training.labels.numpy(), k=3, top_k=galleries.TOP,
        ids=training.row_ids, own_neighbour=own,
    ).gallery  # fmt: skip
    shown = collected(here)["matches"]["classes"]
    assert shown
    for row in shown:
        of_class = found.distance[found.label == row["label"]]
        nearest = np.sort(of_class[~np.isnan(of_class)])[: galleries.TOP]
        np.testing.assert_allclose(row["text_distance"], nearest, atol=6e-4)
