"""The pages of classes: what each means, its anchors, what came in and left, how noisy it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.models import wordnet
from capro.models.classes import class_text
from capro.review.items import tile
from capro.review.session import ReviewSession
from capro.review.table import ReviewTable
from capro.wording import plain

FLOWS, ANCHORS_SHOWN = 8, 24


def overview(desk: ReviewSession) -> list[dict[str, Any]]:
    """All classes with counts and agreement, those with most change first."""
    table = desk.table
    given, after = _membership(table)
    agreement = desk.progress()["agreement"]
    found = [
        {
            "number": c,
            "name": plain(name, 80),
            "given": int(given[c]),
            "after": int(after[c]),
            "stay": int(stay),
            "decided": agreement.get(name),
        }
        for c, (name, stay) in enumerate(zip(table.names, _staying(table), strict=True))
    ]
    return sorted(found, key=lambda each: -(each["given"] + each["after"] - 2 * each["stay"]))


def class_page(desk: ReviewSession, number: int) -> dict[str, Any]:
    """One class."""
    table, spec = desk.table, desk.table.classes[number]
    came, left = flows(table, number)
    rows = table.anchors[0][table.anchors[1] == number]
    given, after = _membership(table)
    stay = int(_staying(table)[number])
    return {
        "number": number,
        "name": spec.name,
        "next": (number + 1) % len(table.names),
        "sense": spec.sense or "",
        "definition": spec.definition or "",
        "text": plain(class_text(spec)[0], 600),
        "senses": [(s.name, plain(s.definition, 200)) for s in wordnet.senses(spec.name)],
        "given": int(given[number]),
        "after": int(after[number]),
        "stay": stay,
        "noise": 1 - stay / given[number] if given[number] else None,
        "came": came,
        "left": left,
        "anchors": [tile(desk, int(row)) for row in rows[:ANCHORS_SHOWN]],
        "anchor_count": len(rows),
        "agreement": desk.progress()["agreement"].get(spec.name),
    }


def _has(labels: NDArray[np.int64], c: int) -> NDArray[np.bool_]:
    return np.asarray(labels[:, c] > 0 if labels.ndim == 2 else labels == c)


def _membership(table: ReviewTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many samples have each class before and after, (C,) each."""
    if table.several:
        return (table.given > 0).sum(axis=0), (table.after > 0).sum(axis=0)
    count = len(table.names)
    before, now = (np.bincount(labels[labels >= 0], minlength=count) for labels in (table.given, table.after))
    return before, now


def _staying(table: ReviewTable) -> NDArray[np.int64]:
    """How many samples keep each class, (C,)."""
    if table.several:
        return np.asarray(((table.given > 0) & (table.after > 0)).sum(axis=0))
    same = table.given[(table.given == table.after) & (table.given >= 0)]
    return np.bincount(same, minlength=len(table.names))


def flows(table: ReviewTable, c: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Where samples of a class came from and went to, the most frequent first; "-" is dropped, "" no label."""
    had, has = _has(table.given, c), _has(table.after, c)
    if table.several:
        out = (table.after < 0).any(axis=1)
        return [("", int((has & ~had).sum()))], [
            ("-", int((had & out).sum())),
            ("", int((had & ~has & ~out).sum())),
        ]
    came, left = table.given[has & ~had], table.after[had & ~has]

    def counted(labels: NDArray[np.int64], none: str) -> list[tuple[str, int]]:
        numbers, counts = np.unique(labels, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:FLOWS]
        return [
            (table.names[n] if n >= 0 else none, int(k))
            for n, k in zip(numbers[order], counts[order], strict=True)
        ]

    return counted(came, ""), counted(left, "-")
