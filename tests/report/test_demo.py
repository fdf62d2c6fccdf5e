"""The demo: what it prints, and the settings of its two variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capro.cli import tables
from capro.demo import run
from capro.run.directory import Run
from capro.run.progress import Watch
from capro.run.stage import Plan


def test_the_demo_ends_with_the_comparison_and_the_reports_path(
    demo: run.DemoRun, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.demo_summary(demo)
    printed = capsys.readouterr().out
    assert printed.startswith("154 samples (112 train, 42 test), 14 classes")
    assert printed.index("anchors by") < printed.index("verdicts: ") < printed.index("labels that")
    table = printed[printed.index("on the test set") :].split("\n")
    rows = [line.split()[0] for line in table if line.strip()]
    assert rows[-3:] == ["vanilla", "capro", "difference"]
    assert demo.report.as_posix().endswith("report/report.html")
    assert demo.sheet.exists()


class Names(Watch):
    """Keeps the names of the parts as they begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, name: str) -> None:
        self.begun.append(name)


@pytest.mark.parametrize(
    ("multi_label", "overrides", "gamma", "weight"),
    [
        (False, [], 0.6, 1.0),
        (True, [], 0.9, 0.1),
        (True, ["train.lambda_ins=0.5"], 0.9, 0.5),  # the user's value wins
    ],
)
def test_several_labels_have_settings_of_their_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    multi_label: bool,
    overrides: list[str],
    gamma: float,
    weight: float,
) -> None:
    def nothing(*_: Any, **__: Any) -> Any:
        return {}

    for name in ("write_demo", "purity_by_enhancer", "on_truth", "anchor_sheet", "report"):
        monkeypatch.setattr(run, name, nothing)
    monkeypatch.setattr(Plan, "do", nothing)
    watch = Names()
    demo = run.run_demo(tmp_path / "run", multi_label=multi_label, overrides=overrides, watch=watch)
    train = Run.open(demo.run.path).settings.train
    assert (train.gamma, train.lambda_ins) == (gamma, weight)
    assert watch.begun == ["compose", "measure", "report"]
