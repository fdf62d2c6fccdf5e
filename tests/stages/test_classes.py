"""The stage that settles what each class means."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro import config
from capro.errors import ConfigError
from capro.models.classes import classes_of
from capro.pipeline.run import Run
from capro.stages import PLAN
from tests import squares


def test_a_list_says_which_classes_are_ambiguous(tmp_path: Path) -> None:
    data = squares.write_data(tmp_path / "data", train=3, test=1, noise=0)
    run = Run.create(tmp_path / "run", squares.settings(data))
    PLAN.do(run, "scan", "classes")
    assert [spec.name for spec in classes_of(run) if spec.ambiguous] == ["lime"]  # by classes.yaml
    scanned = run.identity("scan")
    (tmp_path / "list.txt").write_text("azure\nnothing of this data\n")
    listed = run.with_settings(config.update(run.settings, [f"data.ambiguous_list={tmp_path / 'list.txt'}"]))
    PLAN.do(listed, "classes")
    assert [spec.name for spec in classes_of(listed) if spec.ambiguous] == ["azure"]
    assert listed.identity("scan") == scanned  # pictures are not read again
    before = listed.identity("classes")
    (tmp_path / "list.txt").write_text("crimson\n")
    PLAN.do(listed, "classes")
    assert listed.identity("classes") != before
    (tmp_path / "list.txt").write_text("nothing of this data\n")
    with pytest.raises(ConfigError, match="names no class of 3 classes"):
        PLAN.do(listed, "classes")
