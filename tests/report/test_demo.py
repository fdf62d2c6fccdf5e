"""What `capro demo` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from capro.cli import app
from capro.demo import run as demo_run
from capro.pipeline.progress import SILENT, Watch


def test_the_demo_ends_with_the_comparison_and_the_reports_path(
    demo: demo_run.DemoRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_run, "run_demo", lambda *_, **__: demo)
    app(["demo", "--run", str(demo.run.path)], standalone_mode=False)
    printed, said = capsys.readouterr()
    assert printed.startswith("187 samples (136 train, 51 test), 17 classes")
    assert printed.index("anchors by") < printed.index("verdicts: ") < printed.index("labels that")
    table = printed[printed.index("on the test set") :].split("\n")
    rows = [line.split()[0] for line in table if line.strip()]
    assert rows[-3:] == ["vanilla", "capro", "difference"]
    lines = said.splitlines()
    assert lines[0] == "next:"
    assert lines[-2].endswith("report/report.html")
    assert "capro review" in lines[-1]


def test_the_demo_announces_its_parts_around_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Announced(Watch):
        def plan(self, stages: Sequence[str]) -> None:
            self.stages = [*stages]

    watch = Announced()
    nothing_done(monkeypatch)
    demo_run.run_demo(tmp_path / "run", multi_label=False, overrides=[], watch=watch)
    assert watch.stages[:2] == ["compose", "scan"]
    assert watch.stages[-3:] == ["evaluate", "measure", "report"]


def nothing_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo decide on settings and do no work."""
    monkeypatch.setattr(demo_run.PLAN, "do", lambda *_, **__: {})
    for name in ("write_demo", "purity_by_enhancer", "on_truth", "anchor_sheet", "report"):
        monkeypatch.setattr(demo_run, name, lambda *_, **__: None)


@pytest.mark.parametrize(
    ("multi_label", "overrides", "gamma", "centred"),
    [
        (False, [], 0.6, False),
        (True, [], 0.9, True),
        (True, ["train.gamma=0.5"], 0.5, True),  # what the user says wins
    ],
)
def test_several_labels_have_settings_of_their_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    multi_label: bool,
    overrides: list[str],
    gamma: float,
    centred: bool,
) -> None:
    nothing_done(monkeypatch)
    demo = demo_run.run_demo(tmp_path / "run", multi_label=multi_label, overrides=overrides, watch=SILENT)
    settings = demo.run.settings
    assert (settings.train.gamma, settings.net.centred) == (gamma, centred)
