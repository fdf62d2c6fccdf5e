"""Answers: what each decides, and that a new one needs nothing but its declaration."""

from __future__ import annotations

from pathlib import Path

import pytest

from capro.pipeline.run import Run
from capro.review.answers import ANSWERS, COMMANDS, AnswerKind, Command, Decision, toolbar
from capro.review.decisions import decision_arrays
from capro.review.exchange import export_decisions, import_decisions
from capro.review.log import replayed
from capro.review.session import ReviewSession
from capro.review.views import View


def test_commands_have_keys_and_words_of_their_own() -> None:
    commands = toolbar(multi_label=True)
    keys = [key for command in commands.values() for key in command.keys]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & set("zyembncg?/ ")  # keys of the pages
    assert all(command.button and command.help for command in commands.values())
    assert toolbar(multi_label=False).keys() == {"accept", "label", "out", "unsure", "anchor"}


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_new_answer_is_declared_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Toolbar, log, tiles, progress, exports and the arrays of the stages follow from the two entries."""
    blurred = AnswerKind(
        drops=True, about_content=False, counted="blurred", word="blurred", choice="(blurred)"
    )
    monkeypatch.setitem(ANSWERS, "blurred", blurred)
    command = Command(lambda question: question.answered("blurred"), "Blurred", "x", help="drop: too blurred")
    monkeypatch.setitem(COMMANDS, "blur", command)
    assert toolbar(multi_label=False)["blur"] is command
    session = ReviewSession(run)
    session.decide([3], "blur", person="me", view=View())
    assert session.state(3) == {"row": 3, "kind": "blurred", "word": "blurred"}
    assert session.progress()["answers"]["blurred"] == 1
    ids, names = session.table.ids.to_pylist(), session.table.names
    session.log.append("undo", "me", {})
    session.log.append("redo", "me", {})
    export_decisions(run, tmp_path / f"d.{kind}")
    session.log.append("undo", "me", {})
    session.log.close()
    import_decisions(run, tmp_path / f"d.{kind}")
    assert replayed(run).current(ids[3]) is not None
    arrays = decision_arrays(run, ids, names, multi_label=False)
    assert arrays is not None
    assert arrays.dropped.nonzero()[0].tolist() == [3]
    assert not arrays.about_content.any()


def test_a_decision_in_words() -> None:
    assert [Decision("a", answer).words for answer in ANSWERS] == [
        "no label",
        "dropped",
        "dropped: near duplicate",
        "not sure",
    ]
