"""Slow and obvious versions of the graph's equations, in float64 and plain loops."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st


@st.composite
def vectors(draw, min_rows=1, max_rows=14, max_width=5):
    """Feature rows with copies, zero rows and opposite rows among random ones."""
    n = draw(st.integers(min_rows, max_rows))
    d = draw(st.integers(2, max_width))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(n, d))
    for i in range(n):
        kind = draw(st.sampled_from(["own", "own", "own", "copy", "longer", "zero", "opposite"]))
        if kind == "zero":
            x[i] = 0
        elif kind != "own":
            x[i] = x[draw(st.integers(0, i))] * {"copy": 1, "longer": 4, "opposite": -1}[kind]
    return x.astype(np.float32)


def cosine(a, b):
    a, b = np.asarray(a, float), np.asarray(b, float)
    length = math.sqrt(a @ a) * math.sqrt(b @ b)
    return 0.0 if length == 0 else float(a @ b) / length


def reciprocal(index, k):
    """R(i, k) as a list of sets."""
    near = [{j for j in row[:k] if j >= 0} for row in index.tolist()]
    return [{j for j in near[i] if i in near[j]} for i in range(len(near))]


def encoding(index, similarity, k, *, own=False):
    """V of Eq. 3, dense; own: a sample is in its own R(i, k)."""
    n = len(index)
    V = np.eye(n) if own else np.zeros((n, n))
    for i, mutual in enumerate(reciprocal(index, k)):
        for place, j in enumerate(index[i, :k].tolist()):
            if j in mutual:
                V[i, j] = math.exp(-(1 - float(similarity[i, place])))
    return V


def jaccard(V, i, j):
    """d_J of Eq. 3, 1 for an empty union."""
    low = high = 0.0
    for m in range(V.shape[1]):
        low += min(V[i, m], V[j, m])
        high += max(V[i, m], V[j, m])
    return 1.0 if high == 0 else 1 - low / high


def refined(index, similarity, k, *, own=False):
    """{j: d*(i, j)} for the pool of each i."""
    V = encoding(index, similarity, k, own=own)
    return [
        {j: (1 - float(similarity[i, place]) + jaccard(V, i, j)) / 2 for place, j in enumerate(row) if j >= 0}
        for i, row in enumerate(index.tolist())
    ]


def smoothed(adjacency, texts):
    """normalise(D^-1/2 (A + I) D^-1/2 S), sample by sample."""
    n = len(texts)
    A = np.asarray(adjacency, float) + np.eye(n)
    out = np.zeros(texts.shape)
    for i in range(n):
        for j in range(n):
            out[i] += A[i, j] / math.sqrt(A[i].sum() * A[j].sum()) * texts[j]
        length = math.sqrt(out[i] @ out[i])
        if length > 0:
            out[i] /= length
    return out
