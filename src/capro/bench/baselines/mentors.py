"""Systems in which a small network judges the samples for the classifier: CleanNet and MentorNet."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.objectives import WeightedLabels
from capro.bench.baselines.work import Learned, Verified, Work, minimise
from capro.graph.neighbors import unit_rows
from capro.models.siamese import Siamese
from capro.pipeline import progress
from capro.pipeline.checksums import seed_for
from capro.pipeline.progress import Bar
from capro.train.batches import Batch

REFERENCES = 32  # centres of a class
MARGIN = 0.1  # rho: cosine of a wrong label, at most
WRONG_WEIGHT = 5.0  # omega, of wrong labels
RECONSTRUCTION, UNVERIFIED = 0.1, 0.1  # beta, gamma: weights of their losses
VERIFIED_BATCH = 32  # verified samples of a step, and as many others
CLEANNET_STEPS, CLEANNET_RATE = 500, 1e-3
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
        phi_s: Tensor = self.set((alpha * h).sum(dim=1))
        return phi_s


def reference_sets(v: NDArray[np.float32], labels: NDArray[np.int64], n_classes: int, *, seed: int) -> Tensor:
    """Centres of each class's features, (C, REFERENCES, d_v); fewer than that are repeated, zeros without any."""
    references = np.zeros((n_classes, REFERENCES, v.shape[1]), dtype=np.float32)
    for c in np.unique(labels):
        own = v[labels == c]
        centres = KMeans(min(REFERENCES, len(own)), n_init=1, random_state=seed % 2**32).fit(own)
        references[c] = np.resize(centres.cluster_centers_, references[c].shape)
    return torch.from_numpy(references)


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


def trained_cleannet(
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
        drawn = rng.integers(0, len(known.rows), VERIFIED_BATCH)
        free = rng.choice(others, VERIFIED_BATCH) if len(others) else others
        rows = torch.from_numpy(np.concatenate([known.rows[drawn], free])).to(v.device)
        classes, of_class = torch.unique(labels[rows], return_inverse=True)
        phi_s, phi_q = net.prototypes(references[classes])[of_class], net.query(v[rows])
        cosine = functional.cosine_similarity(phi_q, phi_s)
        right = torch.from_numpy(known.right[drawn]).to(v.device)
        return total_loss(cosine, right, v[rows], net.decoder(phi_q))

    minimise(net, loss, name="CleanNet: verification", steps=CLEANNET_STEPS, lr=CLEANNET_RATE, bar=bar)
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
    net = trained_cleannet(
        features, training.labels, references, work.verified(), seed=seed, bar=work.job.bar
    )
    return relevance(net, features, training.labels, references)


def cleannet(work: Work) -> Learned:
    """CleanNet: class prototypes and verification (Lee et al., "CleanNet: Transfer Learning for Scalable Image
    Classifier Training with Label Noise", CVPR 2018).

    Of the paper only the abstract could be found here; this follows the authors' released code.

    - Each class has a reference set, the centres of k-means of its samples' features (step 1's, unit norm). An
      encoder with attention turns the set into the class prototype phi_s; another one turns a sample's feature
      into phi_q, from which it is also reconstructed.
    - Verified samples, right or wrong, teach that cos(phi_q, phi_s) is 1 where the web label is right and at
      most 0.1 where it is wrong. Others join with a tenth of the weight and the side of 0.1 on which they are.
      The encoders are shared by all classes: in the paper this helps classes without a verified sample.
    - The classifier learns from web labels with the weight max(0, cos) of each sample.

    Verified samples come from the file of ``baselines.verified``; without it the baseline is refused.

    Left out: going back and forth between classifier and CleanNet (one round here), dropout, weight decay
    (1e-4), and choosing the best step on verified samples. Different: Adam, 500 steps (SGD, 60,000 of small
    batches); features of unit norm (the code takes their logarithm, which centred features have not). One label
    only.
    """
    weights, net = sample_weights(work), work.net()
    work.fit(WeightedLabels(work, net, weights=weights), "CleanNet")
    return net, {"verified": len(work.verified().rows), "weight": float(weights.mean())}


BURN_IN, LINEAR_FROM, LEARN_AGAIN = 0.2, 0.9, 0.75  # shares of the epochs
LEFT_OUT = (0.5, 0.05)  # of each batch, at random: in the burn-in, and later
DECAY = 0.9  # of the moving average
MENTOR_WIDTH, MENTOR_STEPS, MENTOR_RATE = 20, 300, 0.01  # of the data-driven mentor
UNKNOWN = -1  # of a sample that nobody has verified; else 1 where the label is right, 0 where it is wrong


class Mentor(nn.Module):
    """The data-driven mentor: from loss and difference to the weight, (b,), (b,) -> (b,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, MENTOR_WIDTH), nn.Tanh(), nn.Linear(MENTOR_WIDTH, 1))

    def logits(self, losses: Tensor, above: Tensor) -> Tensor:
        """Of the weights, (b,)."""
        logits: Tensor = self.layers(torch.stack([losses, above], dim=1))[:, 0]
        return logits

    def forward(self, losses: Tensor, above: Tensor) -> Tensor:
        return self.logits(losses, above).sigmoid()


def predefined(above: Tensor, *, linear: bool) -> Tensor:
    """Weights by the predefined curriculum after the burn-in, from loss less moving average, (b,) -> (b,).

    >>> above = torch.tensor([-1.0, 0.25, 2.0])
    >>> predefined(above, linear=False).tolist(), predefined(above, linear=True).tolist()
    ([1.0, 0.0, 0.0], [1.0, 0.75, 0.0])
    """
    return (1 - above).clamp(0, 1) if linear else (above <= 0).to(above)


class Mentored(WeightedLabels):
    """The student's objective, with its mentor.

    Args:
        work: What the baseline works with.
        net: The student.
        noise: Share of wrong labels.
        verified: For the data-driven mentor: of each training row 1 (right), 0 (wrong) or UNKNOWN, (n,).
    """

    def __init__(self, work: Work, net: Siamese, *, noise: float, verified: Tensor | None) -> None:
        super().__init__(work, net, weights=self.weights_of)
        self._noise, self._bar = noise, work.job.bar
        epochs, self._seed = work.run.settings.pretrain.epochs, work.run.settings.seed
        self._burnt_in, self._linear, self._again = (
            max(1, round(share * epochs)) for share in (BURN_IN, LINEAR_FROM, LEARN_AGAIN)
        )
        self._verified = torch.full_like(self._labels, UNKNOWN) if verified is None else verified
        # loss and difference of each sample in this epoch; NaN until it is seen, (n, 2)
        self._seen = torch.full((len(self._labels), 2), torch.nan, device=work.device)
        self._average = torch.tensor(torch.nan, device=work.device)  # NaN before the first batch
        self.mentor = Mentor().to(work.device).requires_grad_(False)
        self._taught = torch.tensor(False, device=work.device)  # whether the mentor has learnt

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        super().begin_epoch(epoch, resumed=resumed)
        if resumed:
            return
        known = (self._verified != UNKNOWN) & ~self._seen.isnan().any(dim=1)
        if epoch in (self._burnt_in, self._again) and known.any():
            losses, above = self._seen[known].T
            seed = seed_for(self._seed, "mentor", epoch)
            self.mentor = taught(losses, above, self._verified[known], seed=seed, bar=self._bar)
            self._taught.fill_(True)
        self._seen.fill_(torch.nan)

    def weights_of(self, batch: Batch, losses: Tensor) -> Tensor:
        """Weights v of a batch, (b,)."""
        typical = torch.quantile(losses.float(), 1 - self._noise)
        later = DECAY * self._average + (1 - DECAY) * typical
        self._average = torch.where(self._average.isnan(), typical, later)
        above = losses - self._average
        self._seen[torch.from_numpy(batch.samples)] = torch.stack([losses, above], dim=1).to(self._seen)
        burnt_in = batch.epoch >= self._burnt_in
        if not burnt_in:
            weights = torch.ones_like(losses)
        elif not self._taught:
            weights = predefined(above, linear=batch.epoch >= self._linear)
        else:
            weights = self.mentor(losses, above)
        generator = torch.Generator().manual_seed(seed_for(self._seed, "left out", batch.epoch, batch.step))
        left_out = int(LEFT_OUT[burnt_in] * len(losses))
        weights[torch.randperm(len(losses), generator=generator)[:left_out].to(losses.device)] = 0
        return weights

    def state(self) -> dict[str, Tensor]:
        own = {"average": self._average, "seen": self._seen, "taught": self._taught}
        return own | {f"mentor.{name}": tensor for name, tensor in self.mentor.state_dict().items()}


def taught(losses: Tensor, above: Tensor, right: Tensor, *, seed: int, bar: progress.Bar) -> Mentor:
    """A mentor that has learnt from verified samples whether a label is right, (m,) each."""
    torch.manual_seed(seed)
    mentor = Mentor().to(losses.device)
    truth = right.to(losses)

    def loss(_: int) -> Tensor:
        return functional.binary_cross_entropy_with_logits(mentor.logits(losses, above), truth)

    minimise(mentor, loss, name="MentorNet: mentor", steps=MENTOR_STEPS, lr=MENTOR_RATE, bar=bar)
    return mentor


def mentornet(work: Work) -> Learned:
    """MentorNet: a mentor weighs the student's samples (Jiang et al., "MentorNet: Learning Data-Driven Curriculum
    for Very Deep Neural Networks on Corrupted Labels", ICML 2018).

    Of the paper only the abstract could be found here; this follows the authors' released code, and memory of
    the paper where the code has no value.

    - The student is the classifier. Its loss is the mean of v_i L_cls,i. In the first fifth of the epochs
      (burn-in) every v is 1 and half of each batch is left out at random; later a twentieth is.
    - The mentor sees a sample's loss and how far it is above a moving average of the batches' p-percentile,
      with p the share of labels that are right (estimated without truth, see Co-teaching).
    - Predefined curriculum, without verified samples (MentorNet PD): v = 1 where the loss is not above the
      average, else 0; in the last tenth of the epochs 1 - (loss - average), clipped to [0, 1].
    - Data-driven, where ``baselines.verified`` names a file (MentorNet DD): v is the output of a network of one
      hidden layer that has learnt from the verified samples' losses whether a label is right; it learns after
      the burn-in and again after three quarters of the epochs, each time from the epoch before.

    Left out: the network that imitates the predefined curriculum (the curriculum itself is used), the mentor's
    inputs label and epoch (the released code sets the label to 0 and holds the epoch fixed), its LSTM (over one
    step there), and weight decay in proportion to the weights. One label only.
    """
    net, verified = work.net(), None
    if work.run.settings.baselines.verified:
        known = work.verified()
        verified = torch.full((len(work.training.labels),), UNKNOWN)
        verified[torch.from_numpy(known.rows)] = torch.from_numpy(known.right).long()
        verified = verified.to(work.device)
        noise = float(1 - known.right.mean())
    else:
        noise = work.noise()
    work.fit(Mentored(work, net, noise=noise, verified=verified), "MentorNet")
    return net, {"noise": noise, "mentor": "predefined" if verified is None else "data-driven"}
