"""Systems that weigh the samples of a class by where they lie among the others: CurriculumNet and SOMNet."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.objectives import BaselineObjective, WeightedLabels
from capro.bench.baselines.work import Learned, Work
from capro.core.losses import classification_loss
from capro.data.views import QUERY
from capro.models.siamese import Siamese
from capro.pipeline.checksums import seed_for
from capro.train.batches import Batch, Inputs
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
    subset = np.zeros(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        dense = densities(v[rows])
        groups = min(SUBSETS, len(np.unique(dense)))
        fitted = KMeans(groups, n_init=10, random_state=seed % 2**32).fit(dense[:, None].astype(np.float64))
        order = np.argsort(-fitted.cluster_centers_[:, 0])  # the densest first
        subset[rows] = np.argsort(order)[fitted.labels_]
    return subset


def stage_weights(subset: Ints, stage: int) -> Floats:
    """Weight of each sample in a stage, (n,): the loss weight, and the batch's share over the set's.

    With evenly drawn batches the mean of weight times loss is then that of batches with these shares.
    """
    sizes = np.bincount(subset, minlength=SUBSETS)
    shares = np.array(BATCH_SHARES[stage]) * (sizes > 0)  # what an empty subset would have, the others get
    shares /= shares.sum()
    of_subset = np.array(LOSS_WEIGHTS) * shares * len(subset) / np.maximum(sizes, 1)
    return np.asarray(of_subset[subset], dtype=np.float32)


def curriculumnet(work: Work) -> Learned:
    """CurriculumNet: a curriculum by density (Guo et al., "CurriculumNet: Weakly Supervised Learning from Large-
    Scale Web Images", ECCV 2018).

    Of the paper only the abstract could be found here. The split follows the authors' released clustering code;
    stages, shares and weights of the training are from memory of the paper.

    - Split: in each class the local density of a sample is the number of others of its class within a cut-off,
      below which three fifths of the class's distances lie. k-means cuts the densities into three subsets:
      clean (dense), noisy, highly noisy. Distances are of step 1's features.
    - Training in three stages, one after the other: the clean subset alone; clean and noisy, half of a batch
      each; all three, in the shares 2 : 1 : 1. Noisy and highly noisy samples have half the loss weight.

    Left out: PCA to 256 dimensions before distances (it only saves time), and the cluster centres of the
    released code, which decide nothing. Different: the stages are thirds of step 1's schedule; batches are
    drawn evenly from all samples and the shares of the subsets are weights, which gives the same loss in the
    mean; a class with fewer than three different densities has fewer subsets; in classes above 2,048 samples
    the cut-off is estimated from 2,048 of them. One label only.
    """
    settings, training, net = work.run.settings, work.training, work.net()
    labels = training.labels.cpu().numpy()
    subset = subsets(work.features(training.positions), labels, seed=settings.seed)
    stages = [torch.from_numpy(stage_weights(subset, stage)).to(work.device) for stage in range(SUBSETS)]
    epochs = settings.pretrain.epochs

    def weigh(batch: Batch, _: Tensor) -> Tensor:
        return rows_of(stages[SUBSETS * batch.epoch // epochs], batch.samples)

    work.fit(WeightedLabels(work, net, weights=weigh), "CurriculumNet")
    sizes = np.bincount(subset, minlength=SUBSETS).tolist()
    return net, dict(zip(("clean", "noisy", "highly noisy"), sizes, strict=True))


IMAGES, REGIONS = 4, 2  # of a bag, of a picture
SIDES = (2, 12)  # clusters along a side of the grid, at least and at most
MEMBERS = 10  # samples that a cluster should have
KEY_RATE, VALUE_DECAY = 0.1, 0.99  # of keys, and of values
REACH = 0.5  # width of the neighbourhood at the end, in steps of the grid
SETTLE = 0.2  # share of the epochs in which regions weigh the same


class Memory:
    """A grid of clusters: where they are in feature space, and which classes meet them.

    Args:
        keys: First keys, (side^2, d_v).
        n_classes: C.
    """

    def __init__(self, keys: Tensor, n_classes: int) -> None:
        side = round(len(keys) ** 0.5)
        axis = torch.arange(side, dtype=torch.float32, device=keys.device)
        self._grid = torch.cartesian_prod(axis, axis)  # (L, 2)
        self.keys = functional.normalize(keys, dim=1)
        self.values = torch.zeros(len(keys), n_classes, device=keys.device)
        self.widest = max(REACH, side / 2)

    def winners(self, v: Tensor) -> Tensor:
        """The cluster of each feature, (m, d_v) -> (m,)."""
        return (functional.normalize(v, dim=1) @ self.keys.T).argmax(dim=1)

    def weights(self, v: Tensor, y: Tensor) -> Tensor:
        """Discriminative times representative score of each feature's cluster for a class, (m,)."""
        at = self.winners(v)
        met = self.values[at, y]
        discriminative = met / self.values[at].sum(dim=1).clamp(min=1e-12)
        representative = met / self.values.max(dim=0).values[y].clamp(min=1e-12)
        return discriminative * representative

    def update(self, v: Tensor, y: Tensor, *, reach: float) -> None:
        """Move keys towards features and count their classes, (m, d_v), (m,); ``reach`` in steps of the grid."""
        v = functional.normalize(v, dim=1)
        steps = torch.cdist(self._grid[self.winners(v)], self._grid)  # (m, L)
        near = torch.exp(-steps.square() / (2 * reach**2))
        mass = near.sum(dim=0)  # (L,)
        target = near.T @ v / mass.clamp(min=1e-12)[:, None]
        self.keys = functional.normalize(
            self.keys + KEY_RATE * mass.clamp(max=1)[:, None] * (target - self.keys), dim=1
        )
        counted = near.T @ functional.one_hot(y, self.values.shape[1]).to(near)
        self.values = VALUE_DECAY * self.values + counted


class Bags(Inputs):
    """Bags as network input: pictures of one class in another order in each epoch, regions of each.

    Args:
        inner: Where views of pictures come from.
        positions: Manifest position of each training row, (n,).
        labels: Web labels, (n,).
        seed: Of the orders.
    """

    def __init__(self, inner: Inputs, positions: Ints, labels: Ints, *, seed: int) -> None:
        self._inner, self._positions, self._seed = inner, positions, seed
        self._rows = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        counts = [-(-len(rows) // IMAGES) for rows in self._rows]
        #: one row of each bag, which stands for it; its class is the bag's
        self.leaders = np.concatenate([rows[:count] for rows, count in zip(self._rows, counts, strict=True)])
        self._number = {int(positions[row]): number for number, row in enumerate(self.leaders)}
        self._dealt: dict[int, Ints] = {}

    def members(self, epoch: int) -> Ints:
        """Training rows of each bag, (bags, IMAGES): each of a class once, a few twice to fill the last bag."""
        bags = self._dealt.get(epoch)
        if bags is None:
            rng = np.random.default_rng(seed_for(self._seed, "bags", epoch))
            orders = [rng.permutation(rows) for rows in self._rows]
            filled = [np.resize(order, (-(-len(order) // IMAGES), IMAGES)) for order in orders]
            bags = np.concatenate(filled)
            self._dealt = {epoch: bags}
        return bags

    def _pictures(self, positions: Ints, epoch: int) -> Ints:
        numbers = [self._number[position] for position in positions.tolist()]
        return self._positions[self.members(epoch)[numbers].ravel()]  # (b IMAGES,)

    def raw(self, positions: Ints, *, epoch: int, view: int) -> NDArray[np.generic]:
        """Regions of bags, (b, IMAGES REGIONS, ...)."""
        del view
        at = self._pictures(positions, epoch)
        regions = [self._inner.raw(at, epoch=REGIONS * epoch + r, view=QUERY) for r in range(REGIONS)]
        return np.stack(regions, axis=1).reshape(len(positions), -1, *regions[0].shape[1:])

    def ready(
        self, raw: NDArray[np.generic], positions: Ints, *, epoch: int, view: int, device: torch.device
    ) -> Tensor:
        """The network's input, (b, IMAGES REGIONS, ...)."""
        del view
        at = np.repeat(self._pictures(positions, epoch), REGIONS)
        flat = raw.reshape(-1, *raw.shape[2:])
        x = self._inner.ready(flat, at, epoch=epoch, view=QUERY, device=device)
        return x.reshape(*raw.shape[:2], *x.shape[1:])


def bag_features(v: Tensor, weights: Tensor) -> Tensor:
    """Weighted means of regions, (b, r, d_v), (b, r) -> (b, d_v); the plain mean where all weights are 0.

    >>> bag_features(torch.tensor([[[2.0], [4.0]]] * 2), torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([[2.5000],
            [3.0000]])
    """
    total = weights.sum(dim=1, keepdim=True)
    shares = torch.where(total > 0, weights / total.clamp(min=1e-12), 1 / weights.shape[1])
    return (shares[..., None] * v).sum(dim=1)


class WeighedBags(BaselineObjective):
    """The cross-entropy of bags, whose regions a memory weighs.

    Args:
        work: What the baseline works with.
        net: Networks.
        labels: Class of each bag.
        memory: The memory.
    """

    def __init__(self, work: Work, net: Siamese, labels: Tensor, memory: Memory) -> None:
        super().__init__(work, net, labels)
        self.memory, self._epochs = memory, work.run.settings.pretrain.epochs

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        y = rows_of(self._labels, batch.samples)
        bags, regions = batch.query.shape[:2]
        v = self.net.encoder(batch.query.flatten(0, 1))
        of_region = y.repeat_interleave(regions)
        with torch.no_grad():
            memory, seen, done = self.memory, v.detach().float(), batch.epoch / self._epochs
            weights = memory.weights(seen, of_region) if done >= SETTLE else torch.ones_like(seen[:, 0])
            reach = memory.widest + done * (REACH - memory.widest)
            memory.update(seen, of_region, reach=reach)
        mean = bag_features(v.reshape(bags, regions, -1), weights.reshape(bags, regions).to(v))
        return {"cls": classification_loss(self.net.heads.classifier(mean), y)}

    def state(self) -> dict[str, Tensor]:
        return {"keys": self.memory.keys, "values": self.memory.values}


def somnet(work: Work) -> Learned:
    """SOMNet: bags of pictures weighed by a memory (Tu et al., "Learning from Web Data with Self-Organizing Memory
    Module", CVPR 2020).

    Of the paper only the abstract and the introduction could be found here. They name the parts: regions of
    pictures of one class in a bag, weights by the scores of their nearest clusters, a self-organizing memory
    that keeps clusters and scores. Formulas and constants are ours where the paper's are not remembered.

    - A bag has four pictures of one class, and of each two regions. Its feature is the weighted mean of its
      regions' features, its label the class: L is the cross-entropy of the bags.
    - The memory is a square grid of clusters, each with a key (a direction in feature space) and a value (how
      often each class met it). A region belongs to the key with the highest cosine. Its weight is the product
      of two scores of that cluster for the bag's class: the discriminative one, the class's share of the
      cluster, and the representative one, the class's frequency there over that in its most frequent cluster.
    - The memory organises itself as Kohonen's map: a region moves the winning key and its neighbours on the
      grid, and counts in their values; the neighbourhood shrinks while training goes on.

    At test time a picture is a bag of its own, with one region. Left out: region proposals (EdgeBoxes); regions
    are random crops, which the views of a picture are anyway. Different: keys and values are moving averages,
    not weights with a loss; in the first fifth of the epochs, while the memory settles, all regions weigh the
    same. One label only.
    """
    settings, training, net = work.run.settings, work.training, work.net()
    side = int(np.clip(round((len(training.labels) / MEMBERS) ** 0.5), *SIDES))
    rng = np.random.default_rng(seed_for(settings.seed, "memory"))
    first = rng.choice(training.positions, side**2, replace=len(training.positions) < side**2)
    keys = torch.from_numpy(work.features(first, net)).to(work.device)
    memory = Memory(keys, len(training.classes))
    labels = training.labels.cpu().numpy()
    bags = Bags(work.inputs(net), training.positions, labels, seed=settings.seed)
    leaders = torch.from_numpy(bags.leaders).to(work.device)
    schedule = settings.pretrain.model_copy(
        update={"batch_size": max(1, settings.pretrain.batch_size // IMAGES)}  # as many pictures as step 1
    )
    objective = WeighedBags(work, net, training.labels[leaders], memory)
    work.fit(objective, "SOMNet", bags.leaders, inputs=bags, schedule=schedule)
    return net, {"clusters": side**2, "bags": len(bags.leaders)}
