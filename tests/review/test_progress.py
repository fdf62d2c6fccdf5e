"""Figures of a review: agreement, and the estimate from the random part alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.pipeline.run import Run
from capro.results.metrics import wilson
from capro.review.answers import Decision
from capro.review.log import Action, Replay
from capro.review.progress import agreement_by_class, estimate, random_part, reviewed, summary
from capro.review.queue import Queue, make_queue
from capro.review.session import ReviewSession
from capro.review.views import View, Views


def said(
    sample: str, label: str | None, *, given: str, proposed: str | None, random: bool = False
) -> Decision:
    return Decision(
        sample, "labels" if label else "out", yes=(label,) if label else (), given=(given,),
        proposed=(proposed,) if proposed else (), random=random,
    )  # fmt: skip


def test_agreement_by_the_proposed_class() -> None:
    found = agreement_by_class(
        [
            said("a", "cat", given="dog", proposed="cat"),
            said("b", "dog", given="dog", proposed="cat"),
            said("c", None, given="dog", proposed=None),
            Decision("d", "unsure", proposed=("cat",)),
            Decision("e", "labels", yes=("cat",), whole=False, proposed=("cat",)),  # not the whole picture
        ]
    )
    assert {name: (share["hits"], share["total"]) for name, share in found.items()} == {
        "": (1, 1),
        "cat": (1, 2),
    }


def test_the_estimate_counts_the_random_part_alone() -> None:
    drawn = np.arange(5)
    decisions = {
        0: said("a", "cat", given="dog", proposed="cat", random=True),
        1: said("b", "dog", given="dog", proposed="cat"),  # asked for another reason, but drawn as well
        2: Decision("c", "unsure", random=True),
        4: said("e", "dog", given="dog", proposed="dog", random=True),  # behind an open sample
    }
    part = random_part(drawn, decisions)
    assert part == [0, 1, 2]
    found = estimate(part, decisions)
    assert found is not None
    assert (found["before"]["hits"], found["before"]["total"]) == (1, 2)
    assert (found["after"]["hits"], found["after"]["total"]) == (1, 2)
    assert found["unsure"] == 1
    assert summary(decisions, drawn)["waiting"] == 1
    assert estimate([], decisions) is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for share in (0.1, 0.5, 0.9):
        hits = rng.binomial(60, share, 2000)
        covered = [low <= share <= high for low, high in (wilson(int(k) / 60, 60) for k in hits)]
        assert 0.92 < np.mean(covered) < 0.98


# --- a person answers the queue in order ----------------------------------------------------------

NAMES = ["cat", "cow", "dog"]
QUEUE = View()


@dataclass(frozen=True)
class MadeTable:
    """Samples with a known truth, as the session reads them; near duplicates are pictures of the same thing."""

    queue: Queue
    truth: NDArray[np.int64]  # -1: none of the classes
    given: NDArray[np.int64]
    corrected: NDArray[np.int64]  # -1: dropped
    duplicate_group: NDArray[np.int64]
    names = NAMES
    multi_label = False

    def __len__(self) -> int:
        return len(self.truth)

    def sample_id(self, row: int) -> str:
        return str(row)

    def containing(self, words: str) -> NDArray[np.bool_]:
        raise NotImplementedError  # no texts

    def rows_of(self, ids: list[str]) -> NDArray[np.int64]:
        return np.array([int(sample) for sample in ids])

    def group_of(self, row: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.duplicate_group == self.duplicate_group[row])

    def labels(self, row: int, *, before: bool) -> tuple[str, ...]:
        number = (self.given if before else self.corrected)[row]
        return (NAMES[number],) if number >= 0 else ()


class MemoryLog:
    """A log without a file."""

    def __init__(self) -> None:
        self.replay = Replay()

    def decide(
        self, decisions: Sequence[Decision], *, person: str, context: Mapping[str, Any]
    ) -> list[Action]:
        action = Action(self.replay.last + 1, 0.0, person, "decide", None, dict(context), tuple(decisions))
        self.replay.add(action)
        return [action]


def made_table(seed: int, n: int = 900) -> MadeTable:
    """A third of the samples is near duplicates of others; the method doubts these and what it gets wrong."""
    rng = np.random.default_rng(7)  # the samples are always the same, the random order is not
    group = np.where(np.arange(n) < n // 3, np.arange(n) // 6, -1)
    thing = np.where(group < 0, np.arange(n), group)  # what a picture shows, by thing
    truth = rng.integers(-1, 3, n)[thing]
    right = (rng.random(n) < np.where(group < 0, 0.85, 0.4))[thing]
    given = np.where(right & (truth >= 0), truth, rng.integers(0, 3, n)[thing])
    corrected = np.where((rng.random(n) < 0.7)[thing], truth, given)
    doubt = np.where(corrected == truth, 0.2, 0.6) + np.where(group < 0, 0.0, 0.2)
    error = np.clip(doubt + rng.normal(0, 0.1, n), 0, 1)
    queue = make_queue(error, np.maximum(corrected, 0), thing, np.ones(n), seed=seed)
    return MadeTable(queue, truth, given, corrected, group)


def session_of(table: Any) -> ReviewSession:
    """A session on a made table, without a run."""
    session = ReviewSession.__new__(ReviewSession)
    session.table, session.views, session.log = table, Views(table), MemoryLog()  # type: ignore[assignment]
    session.decided, session._row_of, session._lock = np.zeros(len(table), bool), {}, threading.RLock()
    return session


def answers(session: ReviewSession, truth: Sequence[int], count: int) -> Iterator[list[int]]:
    """Answer the first open question of the queue, again and again; the rows that each answer decides."""
    for _ in range(count):
        row = int(session.views.page(QUEUE, session.decided).rows[0])
        rows, label = session.members(row, QUEUE), int(truth[row])
        verb, name = ("out", None) if label < 0 else ("label", session.table.names[label])
        session.decide(rows, verb, name, person="me", view=QUEUE)
        yield rows


def test_what_a_group_question_decides_along_is_not_random() -> None:
    table = made_table(seed=0)
    session = session_of(table)
    group_question = next(rows for rows in answers(session, table.truth.tolist(), 20) if len(rows) > 1)
    assert table.queue.random[group_question[1:]].all()  # the random order would ask them one day
    assert not any(decision.random for row, decision in session.decisions().items() if row in group_question)
    session.decide(group_question[1:2], "out", person="me", view=View(state="decided"))  # corrected later
    decision = session.decision(group_question[1])
    assert decision is not None
    assert not decision.random


def test_the_estimate_holds_the_truth_when_the_queue_is_answered_in_order() -> None:
    shares: dict[str, list[tuple[float, bool]]] = {"before": [], "after": []}
    for seed in range(150):
        table = made_table(seed)
        session = session_of(table)
        decided_along = sum(len(rows) > 1 for rows in answers(session, table.truth.tolist(), 150))
        assert decided_along > 10
        kept = table.corrected >= 0
        true_share = {
            "before": float((table.given == table.truth).mean()),
            "after": float((table.corrected == table.truth)[kept].mean()),
        }
        found = session.progress()["estimate"]
        assert found["part"] >= 20
        for name, share in true_share.items():
            shares[name].append(
                (found[name]["share"] - share, found[name]["low"] <= share <= found[name]["high"])
            )
    for found in shares.values():
        errors, covered = np.array(found).T
        assert abs(errors.mean()) < 0.02
        assert 0.91 <= covered.mean() <= 0.99


def test_progress_and_evaluate_say_the_same(run: Run) -> None:
    session = ReviewSession(run)
    queue = session.table.queue
    for rows in answers(session, session.table.given.tolist(), 12):
        assert session.progress()["estimate"] == (reviewed(run) or {})["estimate"], rows
    found = session.progress()["estimate"]
    session.log.close()
    assert found["part"] == found["judged"] > 0
    assert found["part"] <= 1 + max(np.flatnonzero(np.isin(queue.drawn, [*session.decisions()])))
