"""What `capro demo` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.demo import run
from capro.run import progress


def test_the_demo_ends_with_the_comparison_and_the_reports_path(
    demo: run.Demonstrated, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    run.show(demo, commands="next: ...", say=said.append)
    printed = capsys.readouterr().out
    assert printed.startswith("154 samples (112 train, 42 test), 14 classes")
    assert printed.index("anchors by") < printed.index("verdicts: ") < printed.index("labels that")
    table = printed[printed.index("on the test set") :].split("\n")
    rows = [line.split()[0] for line in table if line.strip()]
    assert rows[-3:] == ["vanilla", "capro", "difference"]
    assert said[0] == "next: ..."
    assert said[-1].endswith("report/report.html")
    assert list(demo.found)[:2] == ["compose", "scan"]


@pytest.mark.parametrize(
    ("multi_label", "overrides", "gamma", "weight"),
    [
        (False, [], 0.6, 1.0),
        (True, [], 0.9, 0.1),
        (True, ["train.lambda_ins=0.5"], 0.9, 0.5),  # what the user says wins
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
    monkeypatch.setattr(run.pipeline, "perform", lambda *_: {})
    demo = run.perform(tmp_path / "run", multi_label=multi_label, overrides=overrides, watch=progress.Watch())
    train = demo.run.settings.train
    assert (train.gamma, train.lambda_ins) == (gamma, weight)
