"""Pages of classes: another meaning of a class, which settings it leaves, and where a run that was moved finds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from capro.config import update
from capro.models.classes import classes_of
from capro.pipeline.plan import DECIDED
from capro.pipeline.run import Run
from capro.review.pages import change_class, sheet
from capro.review.session import ReviewSession
from capro.review.views import View
from capro.stages import PLAN


def test_a_setting_that_another_process_changed_stays(session: ReviewSession, run: Run) -> None:
    changed = run.with_settings(update(run.settings, ["seed=5"]))
    with changed.alone():
        changed.save_settings()
    change_class(session, 2, "nut.n.01", "a hard fruit", person="me")
    now = Run.open(run.path).settings
    assert now.seed == 5
    assert now.data.classes == "run:review/classes.yaml"


def test_a_run_with_another_meaning_can_be_moved(session: ReviewSession, run: Run, tmp_path: Path) -> None:
    change_class(session, 2, "", "a hard fruit", person="me")
    change_class(session, 1, "", "another one", person="me")  # on top of the first
    moved = run.path.rename(tmp_path / "elsewhere")
    again = Run.open(moved)
    PLAN.do(again, "classes")
    assert [spec.definition for spec in classes_of(again)][1:3] == ["another one", "a hard fruit"]


def test_a_meaning_that_was_changed_again_makes_the_classes_out_of_date(
    session: ReviewSession, run: Run
) -> None:
    """The file has the same name both times: export gave the results of the first meaning in silence."""
    for definition in ("a hard fruit", "a dry fruit"):
        change_class(session, 2, "", definition, person="me")
        again = Run.open(run.path)
        assert DECIDED in PLAN.look(again, "classes")[-1].why
        PLAN.do(again, "classes")
        assert PLAN.look(again, "classes")[-1].state == "fresh"


def test_a_sample_says_how_many_near_duplicates_its_link_shows(session: ReviewSession) -> None:
    vars(session.table).update(duplicate_group=np.where(np.arange(len(session.table)) < 22, 7, -1))
    assert sheet(session, 0, View())["copies"] == 21
