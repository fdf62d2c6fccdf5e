"""How far a review is, and what it says about the labels: figures from the decisions.

Agreement is counted against what the method proposed when the question was shown; decisions that were
applied since make the method agree with itself. Only the random part says how many labels are right: the
beginning of a fixed random order, as far as every sample of it is decided. Shares are of samples: one whose
labels are all right counts as right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.pipeline.run import Run
from capro.results.metrics import wilson
from capro.results.store import VerdictStore
from capro.review.answers import Decision
from capro.review.log import replayed
from capro.review.queue import random_order, review_seed

Decisions = Mapping[int, Decision]  # by row


def share_of(hits: Sequence[bool]) -> dict[str, Any]:
    """A counted share with its 95 % interval; None where nothing was counted.

    >>> share_of([True, True])["share"], share_of([])["share"]
    (1.0, None)
    """
    total = len(hits)
    share = sum(hits) / total if total else None
    low, high = (0.0, 1.0) if share is None else wilson(share, total)
    return {"hits": sum(hits), "total": total, "share": share, "low": low, "high": high}


def judged(decision: Decision) -> bool:
    """Whether a decision says what the whole picture shows."""
    return decision.kind.about_content and (decision.whole or decision.kind.drops)


def agrees(decision: Decision) -> bool:
    """Whether the person says what the method had proposed.

    >>> agrees(Decision("a", "labels", yes=("cat",), proposed=("cat",))), agrees(Decision("a", "out"))
    (True, True)
    """
    labels = set() if decision.kind.drops else set(decision.yes)
    return labels == set(decision.proposed)


def given_right(decision: Decision) -> bool:
    """Whether the web labels were right, as the person sees it."""
    return not decision.kind.drops and set(decision.yes) == set(decision.given)


def agreement_by_class(decisions: Iterable[Decision]) -> dict[str, dict[str, Any]]:
    """How often the person agrees with the method, by the class that it proposed; "" for drop."""
    hits: dict[str, list[bool]] = {}
    for decision in decisions:
        if judged(decision):
            for name in decision.proposed or ("",):
                hits.setdefault(name, []).append(agrees(decision))
    return {name: share_of(hits[name]) for name in sorted(hits)}


def random_part(drawn: NDArray[np.int64], decisions: Decisions) -> list[int]:
    """Rows of the random part: the random order up to its first open sample, then back to the last random question.

    A sample in between that was decided for another reason is part of it: doubtful samples are, and without
    them the labels would look better than they are. Behind an open sample, such samples would be too many.

    >>> decisions = {1: Decision("b", "out"), 2: Decision("c", "out", random=True), 3: Decision("d", "out")}
    >>> random_part(np.array([1, 2, 3, 0]), decisions), random_part(np.array([0, 1, 2, 3]), decisions)
    ([1, 2], [])
    """
    part = [*takewhile(decisions.__contains__, drawn.tolist())]
    while part and not decisions[part[-1]].random:
        part.pop()
    return part


def estimate(part: Sequence[int], decisions: Decisions) -> dict[str, Any] | None:
    """Share of right labels before and after, from the random part; None where nothing of it was judged.

    ``before``: web labels. ``after``: the method's labels of the samples that it kept. ``unsure`` are in neither
    share: not sure, dropped as a near duplicate, or only some labels decided.
    """
    content = [decisions[row] for row in part if judged(decisions[row])]
    if not content:
        return None
    kept = [decision for decision in content if decision.proposed]
    return {
        "part": len(part),
        "judged": len(content),
        "unsure": len(part) - len(content),
        "before": share_of([*map(given_right, content)]),
        "after": share_of([*map(agrees, kept)]),
        "dropped": len(content) - len(kept),
    }


def summary(decisions: Decisions, drawn: NDArray[np.int64]) -> dict[str, Any]:
    """How many decisions there are, agreement by class, and the estimate of the random part.

    ``waiting`` answers to random questions do not count yet: a sample before them in the random order is open.

    Args:
        decisions: By row.
        drawn: All rows in the random order.
    """
    part = random_part(drawn, decisions)
    asked = sum(decision.random for decision in decisions.values())
    return {
        "decided": len(decisions),
        "estimate": estimate(part, decisions),
        "waiting": asked - sum(decisions[row].random for row in part),
        "agreement": agreement_by_class(decisions.values()),
    }


def reviewed(run: Run) -> dict[str, Any] | None:
    """The same of a run, without its review being open; None without a decision."""
    decisions = replayed(run).decided()
    if not decisions:
        return None
    ids = VerdictStore(run).ids.to_pylist()
    by_row = {row: decisions[sample] for row, sample in enumerate(ids) if sample in decisions}
    return summary(by_row, random_order(len(ids), review_seed(run)))
