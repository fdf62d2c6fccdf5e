"""How many web labels are wrong, estimated from anchors. Pure; one k-NN search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capro.graph.neighbors import nearest

NOISE_VOTERS = 20  # neighbours that vote on a sample, as many as in the baseline k-NN vote
LEAST_MARGIN = 0.1  # by which anchors must agree more than wrong labels would, else there is no estimate
VOTE_ROWS = 4096  # samples whose votes are in memory at once


def noise_from_anchors(
    v: NDArray[np.float32],
    labels: NDArray[np.int64],
    anchors: NDArray[np.int64],
    *,
    exact_below: int = 200_000,
) -> float | None:
    """Share of wrong web labels, from how anchors and the other samples agree with their likes.

    A sample agrees when its label wins the vote of its nearest others, whatever these are: with
    anchors alone as voters, anchors would agree too well, since they are more like one another than
    like the rest. In a class, anchors agree with the share a and are taken to be right; the others
    agree with the share r. These are a mixture of right ones, who reach a, and wrong ones, who reach
    e = (1 - a) / (C - 1), as if lost votes fell on any class: their noise is (a - r) / (a - e).

    Args:
        v: visual features, (n, d).
        labels: web labels, (n,).
        anchors: rows that are anchors, (m,).
        exact_below: exact search below this many samples.

    Returns:
        Noise of the whole set, or None where anchors agree no more than wrong labels would.
    """
    n_classes = int(labels.max()) + 1
    k = min(NOISE_VOTERS, len(labels) // n_classes // 2)  # small classes: half of their mean size
    if k < 1 or n_classes < 2 or not len(anchors):
        return None
    agree = _votes(labels[nearest(v, k, exact_below=exact_below).index], n_classes) == labels
    anchored = np.zeros(len(labels), dtype=bool)
    anchored[anchors] = True
    sizes, hits = (
        np.stack([np.bincount(labels[at], minlength=n_classes) for at in (part, rest)])
        for part, rest in ((anchored, ~anchored), (anchored & agree, ~anchored & agree))
    )  # (2, C) each: anchors, the others
    a, r = np.divide(hits, sizes, out=np.zeros(hits.shape), where=sizes > 0)
    e = (1 - a) / (n_classes - 1)
    telling = (sizes > 0).all(axis=0) & (a - e >= LEAST_MARGIN)  # else the class looks like others
    counted = sizes[:, telling].sum()
    pooled = hits[0].sum() / sizes[0].sum()
    if counted < 0.5 * len(labels) or pooled - (1 - pooled) / (n_classes - 1) < LEAST_MARGIN:
        return None
    noise = np.clip((a - r)[telling] / (a - e)[telling], 0, 1)
    return float((noise * sizes[1][telling]).sum() / counted)


def _votes(near: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """The class with most votes, (n, k) -> (n,); of equal ones the nearest voter's, else the lowest."""
    winners = np.empty(len(near), dtype=np.int64)
    for begin in range(0, len(near), VOTE_ROWS):
        block = near[begin : begin + VOTE_ROWS]
        votes = np.zeros((len(block), n_classes))
        np.add.at(votes, (np.arange(len(block))[:, None], block), 1)
        votes[np.arange(len(block)), block[:, 0]] += 0.5
        winners[begin : begin + VOTE_ROWS] = votes.argmax(axis=1)
    return winners
