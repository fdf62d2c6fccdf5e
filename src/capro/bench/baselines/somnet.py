"""SOMNet: bags of pictures weighed by a memory (Tu et al., "Learning from Web Data with Self-Organizing Memory
Module", CVPR 2020).

Of the paper only the abstract and the introduction could be found here. They name the parts: regions of pictures
of one class in a bag, weights by the scores of their nearest clusters, a self-organizing memory that keeps
clusters and scores. Formulas and constants are ours where the paper's are not remembered.

- A bag has four pictures of one class, and of each two regions. Its feature is the weighted mean of its
  regions' features, its label the class: L is the cross-entropy of the bags.
- The memory is a square grid of clusters, each with a key (a direction in feature space) and a value (how
  often each class met it). A region belongs to the key with the highest cosine. Its weight is the
  product of two scores of that cluster for the bag's class: the discriminative one, the class's share of
  the cluster, and the representative one, the class's frequency there over that in its most frequent cluster.
- The memory organises itself as Kohonen's map: a region moves the winning key and its neighbours on the
  grid, and counts in their values; the neighbourhood shrinks while training goes on.

At test time a picture is a bag of its own, with one region.
Left out: region proposals (EdgeBoxes); regions are random crops, which the views of a picture are anyway.
Different: keys and values are moving averages, not weights with a loss; in the first fifth of the epochs, while
the memory settles, all regions weigh the same.
One label only.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capro.bench.baselines.work import Made, Work
from capro.core.losses import classification_loss
from capro.data.views import QUERY
from capro.models.siamese import Siamese
from capro.pipeline.checksums import seed_for
from capro.train.batches import Batch, Inputs
from capro.train.objectives import WebLabels, rows_of

Ints = NDArray[np.int64]

IMAGES, REGIONS = 4, 2  # of a bag, of a picture
SIDES = (2, 12)  # clusters along a side of the grid, at least and at most
MEMBERS = 10  # samples that a cluster should have
RATE, DECAY = 0.1, 0.99  # of keys, and of values
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
            self.keys + RATE * mass.clamp(max=1)[:, None] * (target - self.keys), dim=1
        )
        counted = near.T @ functional.one_hot(y, self.values.shape[1]).to(near)
        self.values = DECAY * self.values + counted


class Bags:
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
        found = self._dealt.get(epoch)
        if found is None:
            rng = np.random.default_rng(seed_for(self._seed, "bags", epoch))
            orders = [rng.permutation(rows) for rows in self._rows]
            filled = [np.resize(order, (-(-len(order) // IMAGES), IMAGES)) for order in orders]
            found = np.concatenate(filled)
            self._dealt = {epoch: found}
        return found

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


class WeighedBags(WebLabels):
    """The cross-entropy of bags, whose regions a memory weighs.

    Args:
        work: What the baseline works with.
        net: Networks.
        labels: Class of each bag.
        memory: The memory.
    """

    def __init__(self, work: Work, net: Siamese, labels: Tensor, memory: Memory) -> None:
        super().__init__(net, work.task, labels, work.ranks, lambda_prj=0.0)
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


def learn(work: Work) -> Made:
    """Train on bags; the memory learns beside."""
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
