"""The state behind the pages."""

from __future__ import annotations

from capro.pipeline.run import Run
from capro.review.answers import Decision
from capro.review.log import open_log
from capro.review.session import ReviewSession


def test_an_undo_of_another_person_is_not_mine(session: ReviewSession, run: Run) -> None:
    """Both arrive in the same read of the log."""
    elsewhere = open_log(run)
    elsewhere.decide([Decision(session.table.sample_id(0), "out")], person="you")
    elsewhere.append("undo", "you", {})
    elsewhere.close()
    assert session.undo_or_redo("undo", "me")[0] == "Nothing to undo."
