"""Figures of a review: agreement, and the estimate from the random part alone."""

from __future__ import annotations

import numpy as np

from capro.results.metrics import wilson
from capro.review.answers import Decision
from capro.review.progress import agreement_by_class, estimate, random_part


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
        4: said("e", "dog", given="dog", proposed="dog"),  # behind the last random question
    }
    part = random_part(drawn, decisions)
    assert part == [0, 1, 2]
    found = estimate(part, decisions)
    assert found is not None
    assert (found["before"]["hits"], found["before"]["total"]) == (1, 2)
    assert (found["after"]["hits"], found["after"]["total"]) == (1, 2)
    assert (found["unsure"], found["skipped"]) == (1, 0)
    assert estimate([], decisions) is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for share in (0.1, 0.5, 0.9):
        hits = rng.binomial(60, share, 2000)
        covered = [low <= share <= high for low, high in (wilson(int(k) / 60, 60) for k in hits)]
        assert 0.92 < np.mean(covered) < 0.98
