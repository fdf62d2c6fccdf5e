"""SINet: side information network (Cheng et al., "Weakly Supervised Learning with Side Information for Noisy
Labeled Images", ECCV 2020).

Of the paper only the abstract could be found here: a visual prototype for each class, made with the help of side
information (captions, tags), and a noise weighting module that estimates the correctness of each picture's label and
weighs it in training. The CAPro paper adds that it "builds visual and textual relation graphs to choose prototypes by
graph-matching", and that its prototypes "are fixed during training". The formulas between are ours:

- Within a class two relation graphs: cosines of step 1's features less their mean, and cosines of the texts, both
  clipped at 0. A = (A_visual + A_textual) / 2; a sample without a text has visual edges alone.
- Graph matching: how well a sample agrees with the others is its entry in the principal eigenvector of A (spectral
  matching), by power iteration. The class's prototype is the mean of its features with these weights.
- Noise weighting: w_i = softmax(cos(v_i, prototypes) / tau) at the web label, divided by the mean of all. Training is
  the cross-entropy on web labels with these weights.

Left out: the hierarchy of classes. Whether weights are renewed while the encoder learns is not said; here they are
computed once, of step 1's features. In classes above 4,096 samples the prototype is of 4,096 of them.
One label only. O(sum n_c^2 d).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from capro.bench.baselines.objectives import WeightedLabels
from capro.bench.baselines.work import Made, Work
from capro.graph.neighbors import unit_rows
from capro.pipeline.artefacts import TEXTS
from capro.train.objectives import rows_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LARGEST = 4096  # samples of a class in its graphs
ITERATIONS = 50  # of the power iteration


def relations(features: Floats) -> Floats:
    """Graph of a class: cosines of unit or zero rows, clipped at 0, without loops, (n, d) -> (n, n)."""
    graph = np.maximum(features @ features.T, 0)
    np.fill_diagonal(graph, 0)
    return np.asarray(graph, dtype=np.float32)


def agreement(graph: Floats) -> Floats:
    """Principal eigenvector of a graph without negative edges, (n, n) -> (n,), sum 1; even where it has no edge.

    >>> agreement(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], np.float32)).round(2).tolist()
    [0.5, 0.5, 0.0]
    """
    found = np.full(len(graph), 1 / len(graph), dtype=np.float64)
    for _ in range(ITERATIONS):
        # the shift keeps two halves of a bipartite graph from swapping for ever
        step = graph @ found + found * graph.max(initial=0)
        if not step.any():
            break
        found = step / step.sum()
    if graph.any():  # only the shift holds samples without any edge
        found[~graph.any(axis=1)] = 0
        found /= found.sum()
    return np.asarray(found, dtype=np.float32)


def prototypes(v: Floats, s: Floats, labels: Ints, n_classes: int) -> Floats:
    """Mean feature of each class, weighted by agreement in both graphs, (C, d_v), unit or zero rows.

    Args:
        v: Centred unit features, (n, d_v).
        s: Unit texts, (n, d_t); zero rows are missing.
        labels: Web labels, (n,).
        n_classes: C.
    """
    found = np.zeros((n_classes, v.shape[1]), dtype=np.float32)
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), LARGEST)).astype(np.int64)]
        graph = relations(v[rows]) + relations(s[rows])  # twice A: the eigenvector is the same
        found[c] = agreement(graph) @ v[rows]
    return unit_rows(found)


def sample_weights(v: Floats, prototypes: Floats, labels: Ints, *, tau: float) -> Floats:
    """Belief in each web label by the prototypes, over the mean of all, (n,)."""
    belief = softmax(v @ prototypes.T / tau, axis=1)[np.arange(len(v)), labels]
    return np.asarray(belief / belief.mean(), dtype=np.float32)


def learn(work: Work) -> Made:
    """Prototypes and weights of step 1's features and the texts, then one training."""
    training, net = work.training, work.net()
    labels = training.labels.cpu().numpy()
    v = work.features(training.positions)
    v = unit_rows(v - v.mean(axis=0))
    s = unit_rows(np.asarray(work.run.read(TEXTS)))
    centres = prototypes(v, s, labels, len(training.classes))
    weights = sample_weights(v, centres, labels, tau=work.run.settings.net.tau)
    kept = torch.from_numpy(weights).to(work.device)
    objective = WeightedLabels(
        net, work.task, training.labels, work.ranks, weigh=lambda batch, _: rows_of(kept, batch.samples)
    )
    work.fit(objective, "SINet")
    return net, {"weights below 0.1": float((weights < 0.1).mean())}
