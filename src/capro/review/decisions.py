"""Decisions as the method takes them: arrays by training row, and the hash by which stages know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.data.labels import NO_CLASS
from capro.errors import DataError, RunError, did_you_mean
from capro.pipeline.artefacts import ANCHORS, CLEANED_LABELS
from capro.pipeline.checksums import fingerprint
from capro.pipeline.run import Run
from capro.review.log import Decision, log_file, replayed

Rows = NDArray[np.signedinteger[Any]] | slice
FIXING = ("labels", "out", "copy")  # answers that decide something; "not sure" decides nothing


@dataclass(frozen=True)
class Fixed:
    """What a person has settled, by training row.

    Attributes:
        at: Samples of which a person said what they show, ascending, (m,).
        said: Probability of each class for them, (m, C), nan where nothing is settled: 1 the sample has it, 0 not.
        out: Samples that leave the set, (n,): they show none of the classes, or are copies.
        none: Those of them that show none of the classes, (n,).
        picked: Samples picked as anchors of their class, (n,).
    """

    at: NDArray[np.int64]
    said: NDArray[np.float32]
    out: NDArray[np.bool_]
    none: NDArray[np.bool_]
    picked: NDArray[np.bool_]

    def known(self, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """What was said of some samples, (b, C), nan where nothing is settled."""
        asked = np.arange(len(self.out))[rows]
        found = np.full((len(asked), self.said.shape[1]), np.nan, dtype=np.float32)
        here = np.flatnonzero(np.isin(asked, self.at))
        found[here] = self.said[np.searchsorted(self.at, asked[here])]
        return found

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Samples of which something is settled that they show, be it none of the classes, (n,)."""
        found = self.none.copy()
        found[self.at] |= ~np.isnan(self.said).all(axis=1)
        return found

    @property
    def rows(self) -> NDArray[np.bool_]:
        """Samples of which something is settled, (n,)."""
        return self.out | self.settled

    @property
    def pairs(self) -> NDArray[np.bool_]:
        """Pairs of sample and class that are settled, (n, C)."""
        return self.out[:, None] | ~np.isnan(self.known())

    def states(self, rows: Rows = slice(None)) -> NDArray[np.float32]:
        """One label: `known` with none of these as the last state, (b, C + 1)."""
        known = self.known(rows)
        none = np.where(np.isnan(known).any(axis=1), np.nan, 0.0)
        found = np.column_stack([known, none]).astype(np.float32)
        found[self.none[rows]] = [*[0.0] * known.shape[1], 1.0]
        return found

    def labels(self, given: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels with what is settled in their place, in the shape of the given ones; -1 is out."""
        found = np.array(given)
        if found.ndim == 2:
            settled = ~np.isnan(self.said)
            touched = self.at[
                settled.any(axis=1)
            ]  # one that the method dropped is back with what it is said to show
            found[touched] = np.maximum(found[touched], 0)
            found[self.at] = np.where(settled, self.said > 0.5, found[self.at])
        else:
            has = (self.said > 0.5).any(axis=1)
            found[self.at[has]] = self.said[has].argmax(axis=1)
        found[self.out] = NO_CLASS
        return found


def resolve(
    decisions: Mapping[str, Decision], ids: Sequence[str], classes: Sequence[str], *, several: bool
) -> Fixed:
    """Decisions as arrays; samples that are no longer there are left out, an unknown class is refused.

    >>> said = {"a": Decision("a", "labels", yes=("cat",)), "b": Decision("b", "out")}
    >>> fixed = resolve(said, ["a", "b", "c"], ["cat", "dog"], several=False)
    >>> fixed.known()[0].tolist(), fixed.out.tolist(), fixed.labels(np.array([1, 0, 1])).tolist()
    ([1.0, 0.0], [False, True, False], [0, -1, 1])
    """
    n, place = len(ids), {name: number for number, name in enumerate(classes)}
    at = [row for row, sample in enumerate(ids) if sample in decisions and decisions[sample].answer in FIXING]
    known = np.full((len(at), len(classes)), np.nan, dtype=np.float32)
    out, none, picked = (np.zeros(n, dtype=bool) for _ in range(3))
    for number, row in enumerate(at):
        said = decisions[ids[row]]
        for name in (*said.yes, *said.no):
            if name not in place:
                raise DataError(
                    f"a person decided on {said.sample!r}, and {name!r} is no class of this run",
                    hint="decide on the sample again with `capro review`, or bring the class back into data.classes; "
                    + did_you_mean(name, classes),
                )
        yes = [place[name] for name in said.yes]
        if said.answer == "labels":
            if said.whole and (several or yes):
                known[number] = 0.0
            known[number, [place[name] for name in said.no]] = 0.0
            known[number, yes] = 1.0
            picked[row] = said.anchor
        else:
            out[row] = True
            none[row] = said.answer == "out"
            if said.answer == "out" and several:
                known[number] = 0.0
    return Fixed(np.array(at, dtype=np.int64), known, out, none, picked)


def _fixing(run: Run) -> dict[str, Decision]:
    replay = replayed(run)
    if not replay.last and log_file(run).exists() and _took_in(run):
        raise RunError(
            f"{log_file(run)}: the log of decisions is empty, and there are results that took decisions in",
            hint="put a copy of the file back; to go on without decisions, remove it",
        )
    return {sample: each for sample, each in replay.decided().items() if each.answer in FIXING}


def _took_in(run: Run) -> bool:
    """Whether the results of a run have decisions in them."""
    stages = {ANCHORS.stage, CLEANED_LABELS.stage}
    return any((run.finished(stage) or {}).get("decisions") for stage in stages)


def fixed_of(run: Run, ids: Sequence[str], classes: Sequence[str], *, several: bool) -> Fixed | None:
    """What a person has settled in a run; None where that is nothing."""
    found = _fixing(run)
    return resolve(found, ids, classes, several=several) if found else None


def deciding_person(run: Run) -> str:
    """A hash of all decisions, by which stages know them; empty where there are none."""
    found = _fixing(run)
    if not found:
        return ""
    rows = sorted(
        (sample, each.answer, sorted(each.yes), sorted(each.no), each.whole, each.anchor)
        for sample, each in found.items()
    )
    return fingerprint(rows)
