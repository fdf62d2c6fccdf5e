"""Galleries of the report."""

from __future__ import annotations

import pytest

from capro.report import galleries, page
from capro.run.directory import Run
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


def test_many_classes_leave_out_those_with_least_change(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries, "GALLERY_BUDGET", 2 * 5 * galleries.LEAST)
    data = collected(run)
    assert len(data["galleries"]["classes"]) == 2
    assert "The 2 classes of 4 with most change" in page.render(data)
