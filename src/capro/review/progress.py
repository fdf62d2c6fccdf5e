"""How far a review is, and what it says of the labels: figures from the decisions. Pure.

Agreement is counted against what the method proposed when the question was shown; decisions that were
applied since make the method agree with itself. Only the random part says how many labels are right: the
samples of a fixed random order up to the last random question that was answered. Shares are of samples:
one whose labels are all right counts as right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capro.results.metrics import wilson
from capro.review.log import Decision

JUDGED = ("labels", "out")  # answers that say what a picture shows


@dataclass(frozen=True)
class Share:
    """A counted share with its 95 % interval."""

    hits: int
    total: int

    def as_dict(self) -> dict[str, Any]:
        """For pages and JSON; the share is None where nothing was counted."""
        share = self.hits / self.total if self.total else None
        low, high = (0.0, 1.0) if share is None else wilson(share, self.total)
        return {"hits": self.hits, "total": self.total, "share": share, "low": low, "high": high}


def judged(decision: Decision | None) -> bool:
    """Whether a decision settles what the whole picture shows."""
    return decision is not None and decision.answer in JUDGED and (decision.whole or decision.answer == "out")


def agrees(decision: Decision) -> bool:
    """Whether the person says what the method had proposed.

    >>> agrees(Decision("a", "labels", yes=("cat",), proposed=("cat",))), agrees(Decision("a", "out"))
    (True, True)
    """
    said = set(decision.yes) if decision.answer == "labels" else set()
    return said == set(decision.proposed)


def given_right(decision: Decision) -> bool:
    """Whether the web labels were right, as the person sees it."""
    return decision.answer == "labels" and set(decision.yes) == set(decision.given)


def agreement_by_class(decisions: Iterable[Decision]) -> dict[str, Share]:
    """How often the person agrees with the method, by the class that it proposed; "" for drop."""
    hits: dict[str, int] = {}
    total: dict[str, int] = {}
    for each in decisions:
        if judged(each):
            for name in each.proposed or ("",):
                total[name] = total.get(name, 0) + 1
                hits[name] = hits.get(name, 0) + agrees(each)
    return {name: Share(hits[name], total[name]) for name in sorted(total)}


def random_part(drawn: Sequence[str], decisions: Mapping[str, Decision]) -> list[str]:
    """Ids of the random part: the random order up to the last random question that was answered.

    A sample in between that was decided on another way is in it, so that the choice stays random.

    >>> said = {"c": Decision("c", "out", random=True), "d": Decision("d", "out")}
    >>> random_part(["b", "c", "a", "d"], said)
    ['b', 'c']
    """
    last = max((n for n, sample in enumerate(drawn) if _was_random(decisions.get(sample))), default=-1)
    return [*drawn[: last + 1]]


def _was_random(decision: Decision | None) -> bool:
    return decision is not None and decision.random


def findings(decisions: Mapping[str, Decision], drawn: Sequence[str]) -> dict[str, Any]:
    """What the answers say: how many there are, agreement by class, and the estimate of the random part.

    Args:
        decisions: By sample.
        drawn: Ids in the random order, at least up to the last random question that was answered.
    """
    agreement = agreement_by_class(decisions.values())
    return {
        "decided": len(decisions),
        "estimate": estimate(random_part(drawn, decisions), decisions),
        "agreement": {name: share.as_dict() for name, share in agreement.items()},
    }


def estimate(part: Sequence[str], decisions: Mapping[str, Decision]) -> dict[str, Any] | None:
    """Share of right labels before and after, from the random part; None where nothing of it was judged.

    ``before``: web labels. ``after``: the method's labels of the samples that it kept. ``skipped`` were
    not answered, ``unsure`` were not sure: both are in neither share.
    """
    found = [decisions.get(sample) for sample in part]
    said = [each for each in found if each is not None and judged(each)]
    if not said:
        return None
    kept = [each for each in said if each.proposed]
    return {
        "part": len(part),
        "judged": len(said),
        "unsure": sum(each is not None and each.answer == "unsure" for each in found),
        "skipped": sum(each is None for each in found),
        "before": Share(sum(map(given_right, said)), len(said)).as_dict(),
        "after": Share(sum(map(agrees, kept)), len(kept)).as_dict(),
        "dropped": len(said) - len(kept),
    }
