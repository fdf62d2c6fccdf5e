"""The plan: what is checked before a stage is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.errors import RunError
from capro.pipeline import plan
from capro.pipeline.plan import Plan
from tests.pipeline.cases import make, stage

STAGES = 12


def test_every_stage_is_checked_once_however_many_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage reads all before it: by the paths between them there would be 2 ** 11 checks."""
    names = [f"s{number:02d}" for number in range(STAGES)]
    stages = {name: stage(name, reads=names[:at]) for at, name in enumerate(names)}
    made = Plan(stages.values())
    run = make(tmp_path)
    made.do(run, *names)
    checked = []
    real = plan.outdated

    def outdated(*arguments: object) -> list[str]:
        checked.append(arguments[0])
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "outdated", outdated)
    made.do(run, names[-1])
    assert len(checked) <= 4 * STAGES  # before anything is done, around the stage, and for what is announced
    (run.path / names[3] / "stage.json").unlink()
    with pytest.raises(RunError, match=f"the {names[3]} stage has not finished"):
        made.do(run, names[-1])
