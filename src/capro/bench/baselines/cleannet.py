"""CleanNet: class prototypes and verification (Lee et al., "CleanNet: Transfer Learning for Scalable Image
Classifier Training with Label Noise", CVPR 2018).

Of the paper only the abstract could be found here; this follows the authors' released code.

- Each class has a reference set, the centres of k-means of its samples' features (step 1's, unit norm). An
  encoder with attention turns the set into the class prototype phi_s; another one turns a sample's
  feature into phi_q, from which it is also reconstructed.
- Verified samples, right or wrong, teach that cos(phi_q, phi_s) is 1 where the web label is right and at most
  0.1 where it is wrong. Others join with a tenth of the weight and the side of 0.1 on which they are.
  The encoders are shared by all classes: in the paper this helps classes without a verified sample.
- The classifier learns from web labels with the weight max(0, cos) of each sample.

Verified samples come from the file of ``baselines.verified``; without it the baseline is refused.

Left out: going back and forth between classifier and CleanNet (one round here), dropout, weight decay (1e-4),
and choosing the best step on verified samples. Different: Adam, 500 steps (SGD, 60,000 of small batches);
features of unit norm (the code takes their logarithm, which centred features have not).
One label only.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.objectives import WeightedLabels
from capro.bench.baselines.small_nets import minimise
from capro.bench.baselines.work import Made, Verified, Work
from capro.graph.neighbors import unit_rows
from capro.pipeline.checksums import seed_for
from capro.pipeline.progress import Bar
from capro.train.objectives import rows_of

REFERENCES = 32  # centres of a class
MARGIN = 0.1  # rho: cosine of a wrong label, at most
WRONG_WEIGHT = 5.0  # omega, of wrong labels
RECONSTRUCTION, UNVERIFIED = 0.1, 0.1  # beta, gamma: weights of their losses
BATCH = 32  # verified samples of a step, and as many others
STEPS, RATE = 500, 1e-3
BLOCK = 4096  # samples that are judged at once


class CleanNet(nn.Module):
    """Encoders of reference sets and of samples into one space of 128 dimensions.

    Args:
        width: Of the features, d_v.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.members = nn.Sequential(nn.Linear(width, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh())
        self.attention = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1, bias=False))
        self.set = nn.Sequential(nn.Linear(256, 128), nn.Tanh())
        self.query = nn.Sequential(nn.Linear(width, 256), nn.Tanh(), nn.Linear(256, 128), nn.Tanh())
        self.decoder = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, width), nn.Tanh())

    def prototypes(self, references: Tensor) -> Tensor:
        """phi_s of reference sets, (C, k, d_v) -> (C, 128): their members' mean, weighted by attention."""
        h = self.members(references)  # (C, k, 256)
        alpha = self.attention(h).softmax(dim=1)  # (C, k, 1)
        found: Tensor = self.set((alpha * h).sum(dim=1))
        return found


def reference_sets(v: NDArray[np.float32], labels: NDArray[np.int64], n_classes: int, *, seed: int) -> Tensor:
    """Centres of each class's features, (C, REFERENCES, d_v); fewer than that are repeated, zeros without any."""
    found = np.zeros((n_classes, REFERENCES, v.shape[1]), dtype=np.float32)
    for c in np.unique(labels):
        own = v[labels == c]
        centres = KMeans(min(REFERENCES, len(own)), n_init=1, random_state=seed % 2**32).fit(own)
        found[c] = np.resize(centres.cluster_centers_, found[c].shape)
    return torch.from_numpy(found)


def verification_loss(cosine: Tensor, right: Tensor) -> Tensor:
    """1 - cos where the label is right, omega max(0, cos - rho) where it is wrong, (b,), (b,) -> (b,).

    >>> verification_loss(torch.tensor([0.75, 0.5, 0.0]), torch.tensor([True, False, False]))
    tensor([0.2500, 2.0000, 0.0000])
    """
    return torch.where(right, 1 - cosine, WRONG_WEIGHT * (cosine - MARGIN).clamp(min=0))


def total_loss(cosine: Tensor, right: Tensor, v: Tensor, rebuilt: Tensor) -> Tensor:
    """Mean over a step's samples: verified ones first, each loss with its weight.

    Args:
        cosine: Of samples and their classes, (b,).
        right: Whether the labels of the verified samples are right, (m <= b,).
        v: Features, (b, d_v).
        rebuilt: Features as reconstructed, (b, d_v).
    """
    believed = cosine[len(right) :] >= MARGIN  # of the others: the side on which they are
    weight = torch.full_like(cosine, UNVERIFIED)
    weight[: len(right)] = 1.0
    losses = weight * verification_loss(cosine, torch.cat([right, believed]))
    return (losses + RECONSTRUCTION * (rebuilt - v).square().sum(dim=1)).mean()


def trained(
    v: Tensor, labels: Tensor, references: Tensor, known: Verified, *, seed: int, bar: Bar
) -> CleanNet:
    """A CleanNet that has learnt from verified samples, and from others.

    Args:
        v: Features of all samples, unit norm, (n, d_v).
        labels: Web labels, (n,).
        references: (C, k, d_v).
        known: Which samples were verified, and whether their label is right.
        seed: Of weights and batches.
        bar: Progress.
    """
    torch.manual_seed(seed_for(seed, "cleannet"))
    rng = np.random.default_rng(seed_for(seed, "cleannet batches"))
    net = CleanNet(v.shape[1]).to(v.device)
    others = np.setdiff1d(np.arange(len(v)), known.rows)

    def loss(_: int) -> Tensor:
        drawn = rng.integers(0, len(known.rows), BATCH)
        free = rng.choice(others, BATCH) if len(others) else others
        rows = torch.from_numpy(np.concatenate([known.rows[drawn], free])).to(v.device)
        asked, place = torch.unique(labels[rows], return_inverse=True)
        phi_s, phi_q = net.prototypes(references[asked])[place], net.query(v[rows])
        cosine = functional.cosine_similarity(phi_q, phi_s)
        right = torch.from_numpy(known.right[drawn]).to(v.device)
        return total_loss(cosine, right, v[rows], net.decoder(phi_q))

    minimise(net, loss, name="CleanNet: verification", steps=STEPS, lr=RATE, bar=bar)
    return net


@torch.no_grad()
def relevance(net: CleanNet, v: Tensor, labels: Tensor, references: Tensor) -> Tensor:
    """Weight of each sample, max(0, cos(phi_q, phi_s)), (n,)."""
    prototypes = net.prototypes(references)
    blocks = zip(torch.split(v, BLOCK), torch.split(labels, BLOCK), strict=True)
    parts = [functional.cosine_similarity(net.query(x), prototypes[y]) for x, y in blocks]
    return torch.cat(parts).clamp(min=0)


def sample_weights(work: Work) -> Tensor:
    """The weights of all training rows, (n,)."""
    training, seed = work.training, work.run.settings.seed
    v = unit_rows(work.features(training.positions))
    labels = training.labels.cpu().numpy()
    references = reference_sets(v, labels, len(training.classes), seed=seed).to(work.device)
    features = torch.from_numpy(v).to(work.device)
    net = trained(features, training.labels, references, work.verified(), seed=seed, bar=work.bar)
    return relevance(net, features, training.labels, references)


def learn(work: Work) -> Made:
    """Verify all labels, then train with the weights."""
    weights, net = sample_weights(work), work.net()
    objective = WeightedLabels(
        net, work.task, work.training.labels, work.ranks,
        weigh=lambda batch, _: rows_of(weights, batch.samples),
    )  # fmt: skip
    work.fit(objective, "CleanNet")
    return net, {"verified": len(work.verified().rows), "weight": float(weights.mean())}
