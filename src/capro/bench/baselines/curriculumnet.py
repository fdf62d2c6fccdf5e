"""CurriculumNet: a curriculum by density (Guo et al., "CurriculumNet: Weakly Supervised Learning from
Large-Scale Web Images", ECCV 2018).

Of the paper only the abstract could be found here. The split follows the authors' released clustering
code; stages, shares and weights of the training are from memory of the paper.

- Split: in each class the local density of a sample is the number of others of its class within a cut-off,
  below which three fifths of the class's distances lie. k-means cuts the densities into three subsets:
  clean (dense), noisy, highly noisy. Distances are of step 1's features.
- Training in three stages, one after the other: the clean subset alone; clean and noisy, half of a batch
  each; all three, in the shares 2 : 1 : 1. Noisy and highly noisy samples have half the loss weight.

Left out: PCA to 256 dimensions before distances (it only saves time), and the cluster centres of the
released code, which decide nothing. Different: the stages are thirds of step 1's schedule; batches
are drawn evenly from all samples and the shares of the subsets are weights, which gives the same loss
in the mean; a class with fewer than three different densities has fewer subsets; in classes above 2,048 samples
the cut-off is estimated from 2,048 of them.
One label only.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor

from capro.bench.baselines.objectives import WeightedLabels
from capro.bench.baselines.work import Made, Work
from capro.train.batches import Batch
from capro.train.objectives import rows_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

CLOSE = 0.6  # share of a class's distances below the cut-off
SUBSETS = 3
MEASURED = 2048  # samples of a class whose distances choose the cut-off; rows of a block
LOSS_WEIGHTS = (1.0, 0.5, 0.5)  # of clean, noisy and highly noisy samples
BATCH_SHARES = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.5, 0.25, 0.25))  # by stage


def distances(a: Floats, b: Floats) -> Floats:
    """Euclidean distances, (n, d) x (m, d) -> (n, m)."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squares, 0)), dtype=np.float32)


def densities(v: Floats) -> Ints:
    """Others within the cut-off of each sample of a class, (n, d) -> (n,). O(n^2 d), in blocks."""
    n = len(v)
    chosen = np.linspace(0, n - 1, min(n, MEASURED)).astype(np.int64)
    near = np.sort(distances(v[chosen], v), axis=None)
    cut = near[min(len(near) - 1, int(len(near) * CLOSE))]
    blocks = [v[start : start + MEASURED] for start in range(0, n, MEASURED)]
    counts = np.concatenate([(distances(block, v) < cut).sum(axis=1) for block in blocks])
    return np.asarray(np.maximum(counts - 1, 0), dtype=np.int64)  # less itself


def subsets(v: Floats, labels: Ints, *, seed: int) -> Ints:
    """Subset of each sample within its class, (n, d), (n,) -> (n,): 0 clean, 1 noisy, 2 highly noisy."""
    found = np.zeros(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        dense = densities(v[rows])
        groups = min(SUBSETS, len(np.unique(dense)))
        fitted = KMeans(groups, n_init=10, random_state=seed % 2**32).fit(dense[:, None].astype(np.float64))
        order = np.argsort(-fitted.cluster_centers_[:, 0])  # the densest first
        found[rows] = np.argsort(order)[fitted.labels_]
    return found


def sample_weights(subset: Ints, stage: int) -> Floats:
    """Weight of each sample in a stage, (n,): the loss weight, and the batch's share over the set's.

    With evenly drawn batches the mean of weight times loss is then that of batches with these shares.
    """
    sizes = np.bincount(subset, minlength=SUBSETS)
    shares = np.array(BATCH_SHARES[stage]) * (sizes > 0)  # what an empty subset would have, the others get
    shares /= shares.sum()
    of_subset = np.array(LOSS_WEIGHTS) * shares * len(subset) / np.maximum(sizes, 1)
    return np.asarray(of_subset[subset], dtype=np.float32)


def learn(work: Work) -> Made:
    """Split by density, then train in three stages."""
    settings, training, net = work.run.settings, work.training, work.net()
    labels = training.labels.cpu().numpy()
    subset = subsets(work.features(training.positions), labels, seed=settings.seed)
    stages = [torch.from_numpy(sample_weights(subset, stage)).to(work.device) for stage in range(SUBSETS)]
    epochs = settings.pretrain.epochs

    def weigh(batch: Batch, _: Tensor) -> Tensor:
        return rows_of(stages[SUBSETS * batch.epoch // epochs], batch.samples)

    work.fit(WeightedLabels(net, work.task, training.labels, work.ranks, weigh=weigh), "CurriculumNet")
    sizes = np.bincount(subset, minlength=SUBSETS).tolist()
    return net, dict(zip(("clean", "noisy", "highly noisy"), sizes, strict=True))
