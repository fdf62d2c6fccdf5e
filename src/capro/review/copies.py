"""Near duplicates: of a whole group the best picture is kept, the others are out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capro.review.log import Decision
from capro.review.table import ReviewTable


@dataclass(frozen=True)
class BestCopy:
    """What "keep the best" does with one group.

    Attributes:
        rows: The whole group, also what is on other pages or decided.
        kept: The row that stays; None where a person has taken all of them out.
        out: Rows that become out as copies; those that are out already are not among them.
    """

    rows: list[int]
    kept: int | None
    out: list[int]


def keep_best(table: ReviewTable, said: Mapping[int, Decision], row: int) -> BestCopy:
    """Of a row's group keep what a person has labelled, then the most pixels, then the surest label.

    Args:
        table: The run.
        said: What is decided, by row.
        row: Any row of the group.
    """

    def answer(other: int) -> str:
        return said[other].answer if other in said else ""

    def quality(other: int) -> tuple[bool, int, float, int]:
        labelled = answer(other) == "labels"
        return labelled, int(table.pixels[other]), -float(table.error[other]), -other

    rows = table.group_of(row).tolist()
    left = [other for other in rows if answer(other) not in ("out", "copy")]
    kept = max(left, key=quality, default=None)
    return BestCopy(rows, kept, [other for other in left if other != kept])
