"""Decisions as arrays, and the hash by which stages know them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capro.errors import DataError, RunError
from capro.pipeline.run import Run
from capro.pipeline.stage import Stage, perform
from capro.review.answers import Decision
from capro.review.decisions import decisions_hash, resolve
from capro.review.log import log_file, open_log
from capro.review.session import ReviewSession
from capro.review.views import View
from capro.stages.decided import settled_by_people
from capro.train.setup import training_set
from tests.review.made import make_run

IDS, CLASSES = ["a", "b", "c", "d"], ["cat", "dog", "cow"]


def test_one_label() -> None:
    said = {
        "a": Decision("a", "labels", yes=("dog",), anchor=True),
        "b": Decision("b", "out"),
        "c": Decision("c", "copy"),
        "d": Decision("d", "unsure"),
        "gone": Decision("gone", "out"),
    }
    arrays = resolve(said, IDS, CLASSES, multi_label=False)
    states = arrays.known()
    assert states[0].tolist() == [0, 1, 0, 0]
    assert states[1].tolist() == [0, 0, 0, 1]
    assert np.isnan(states[2:]).all()  # a copy shows what it shows, not sure settles nothing
    assert arrays.labels(np.array([0, 0, 0, 0])).tolist() == [1, -1, -1, 0]
    assert arrays.decided.tolist() == [True, True, True, False]
    assert arrays.anchors.tolist() == [True, False, False, False]


@pytest.mark.parametrize("said", [{"yes": ("birt",)}, {"yes": ("cat",), "no": ("birt",)}])
def test_a_decision_with_an_unknown_class_is_refused(said: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(DataError, match="decided on 'a', and 'birt' is no class of this run") as found:
        resolve({"a": Decision("a", "labels", **said)}, IDS, [*CLASSES, "bird"], multi_label=True)  # type: ignore[arg-type]
    assert "decide on the sample again with `capro review`" in found.value.hint
    assert "did you mean 'bird'?" in found.value.hint


def test_a_log_that_was_emptied_is_refused_where_results_have_decisions_in_them(run: Run) -> None:
    log_file(run).parent.mkdir(exist_ok=True)
    log_file(run).touch()
    assert decisions_hash(run) == ""  # killed while it was made
    perform(run, Stage("clean", lambda _: None, decisions=lambda _: "a"))
    with pytest.raises(RunError, match="the log of decisions is empty, and there are results"):
        decisions_hash(run)
    log_file(run).unlink()
    assert decisions_hash(run) == ""


def test_several_labels() -> None:
    said = {
        "a": Decision("a", "labels", yes=("dog",), no=("cat",), whole=False),
        "b": Decision("b", "labels", yes=()),
        "c": Decision("c", "out"),
    }
    arrays = resolve(said, IDS, CLASSES, multi_label=True)
    assert np.isnan(arrays.known()[0]).tolist() == [False, False, True]
    assert arrays.known([1])[0].tolist() == [0, 0, 0]
    method = np.array([[1, 0, 1], [1, 1, 1], [1, 0, 0], [-1, -1, -1]])
    assert arrays.labels(method).tolist() == [[0, 1, 1], [0, 0, 0], [-1, -1, -1], [-1, -1, -1]]
    dropped = np.full((4, 3), -1)
    assert arrays.labels(dropped)[0].tolist() == [0, 1, 0]  # it is back with what it shows


def test_the_hash_follows_what_is_settled(run: Run) -> None:
    assert decisions_hash(run) == ""
    log = open_log(run)
    log.decide([Decision("a", "unsure")], person="me")
    assert decisions_hash(run) == ""
    log.decide([Decision("a", "out", proposed=("cat",))], person="me")
    first = decisions_hash(run)
    log.decide([Decision("a", "out")], person="somebody else")
    assert decisions_hash(run) == first  # who said it, and what was shown, decide nothing
    log.decide([Decision("b", "out")], person="me")
    assert decisions_hash(run) != first
    log.close()


def test_the_posterior_is_calibrated_by_what_was_asked_at_random_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, per_class=30)
    session, view = ReviewSession(run), View()
    queue = session.table.queue
    group = next(rows for row in queue.order.tolist() if len(rows := session.members(row, view)) > 1)
    asked = next(row for row in queue.order[queue.random[queue.order]].tolist() if row not in group)
    assert queue.random[group].any()
    for rows in (group, [asked]):
        session.decide(rows, "out", person="me", view=view)
    session.log.close()
    settled = settled_by_people(run, training_set(run))
    assert settled is not None
    assert settled.random is not None
    assert settled.at[settled.random].tolist() == [asked]
    assert settled.at.tolist() == sorted([*group, asked])
