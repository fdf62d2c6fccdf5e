"""What `capro demo` prints."""

from __future__ import annotations

import pytest

from capro import demonstration


def test_the_demo_ends_with_the_comparison_and_the_reports_path(
    demo: demonstration.Demonstrated, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    demonstration.show(demo, commands="next: ...", say=said.append)
    printed = capsys.readouterr().out
    assert printed.startswith("154 samples (112 train, 42 test), 14 classes")
    assert printed.index("anchors by") < printed.index("verdicts: ") < printed.index("labels that")
    table = printed[printed.index("on the test set") :].split("\n")
    rows = [line.split()[0] for line in table if line.strip()]
    assert rows[-3:] == ["vanilla", "capro", "difference"]
    assert said[0] == "next: ..."
    assert said[-1].endswith("report/report.html")
    assert list(demo.found)[:2] == ["compose", "scan"]
