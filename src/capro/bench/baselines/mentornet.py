"""MentorNet: a mentor weighs the student's samples (Jiang et al., "MentorNet: Learning Data-Driven Curriculum
for Very Deep Neural Networks on Corrupted Labels", ICML 2018).

Of the paper only the abstract could be found here; this follows the authors' released code, and memory of the
paper where the code has no value.

- The student is the classifier. Its loss is the mean of v_i L_cls,i. In the first fifth of the epochs
  (burn-in) every v is 1 and half of each batch is left out at random; later a twentieth is.
- The mentor sees a sample's loss and how far it is above a moving average of the batches' p-percentile, with
  p the share of labels that are right (estimated without truth, see Co-teaching).
- Predefined curriculum, without verified samples (MentorNet PD): v = 1 where the loss is not above the average,
  else 0; in the last tenth of the epochs 1 - (loss - average), clipped to [0, 1].
- Data-driven, where ``baselines.verified`` names a file (MentorNet DD): v is the output of a network of one hidden
  layer that has learnt from the verified samples' losses whether a label is right; it learns after
  the burn-in and again after three quarters of the epochs, each time from the epoch before.

Left out: the network that imitates the predefined curriculum (the curriculum itself is used), the mentor's
inputs label and epoch (the released code sets the label to 0 and holds the epoch fixed), its LSTM (over one step
there), and weight decay in proportion to the weights.
One label only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from capro.bench.baselines.objectives import WeightedLabels
from capro.bench.baselines.small_nets import minimise
from capro.bench.baselines.work import Made, Work
from capro.models.siamese import Siamese
from capro.pipeline import progress
from capro.pipeline.checksums import seed_for
from capro.train.batches import Batch
from capro.train.objectives import rows_of

BURN_IN, LINEAR_FROM, LEARN_AGAIN = 0.2, 0.9, 0.75  # shares of the epochs
LEFT_OUT = (0.5, 0.05)  # of each batch, at random: in the burn-in, and later
DECAY = 0.9  # of the moving average
HIDDEN, STEPS, RATE = 20, 300, 0.01  # of the data-driven mentor
UNKNOWN = -1  # of a sample that nobody has verified; else 1 where the label is right, 0 where it is wrong


class Mentor(nn.Module):
    """The data-driven mentor: from loss and difference to the weight, (b,), (b,) -> (b,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))

    def logits(self, losses: Tensor, above: Tensor) -> Tensor:
        """Of the weights, (b,)."""
        found: Tensor = self.layers(torch.stack([losses, above], dim=1))[:, 0]
        return found

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
        super().__init__(net, work.task, work.training.labels, work.ranks, weigh=self.weights_of)
        self._noise, self._bar = noise, work.bar
        epochs, self._seed = work.run.settings.pretrain.epochs, work.run.settings.seed
        self._burnt_in, self._linear, self._again = (
            max(1, round(share * epochs)) for share in (BURN_IN, LINEAR_FROM, LEARN_AGAIN)
        )
        if verified is None:
            verified = torch.full_like(self._labels, UNKNOWN)
        rows = torch.nonzero(verified != UNKNOWN).flatten()
        self._right = verified[rows]  # (m,)
        self._place = torch.full_like(verified, UNKNOWN)  # of a training row among the verified ones
        self._place[rows] = torch.arange(len(rows), device=rows.device)
        # loss and difference of each verified sample in this epoch; NaN until it is seen, (m, 2)
        self._seen = torch.full((len(rows), 2), torch.nan, device=rows.device)
        self._average = torch.tensor(torch.nan, device=rows.device)  # NaN before the first batch
        self.mentor = Mentor().to(rows.device).requires_grad_(False)
        self._taught = torch.tensor(False, device=rows.device)  # whether the mentor has learnt

    def begin_epoch(self, epoch: int, *, resumed: bool) -> None:
        super().begin_epoch(epoch, resumed=resumed)
        if resumed:
            return
        known = ~self._seen.isnan().any(dim=1)
        if epoch in (self._burnt_in, self._again) and known.any():
            losses, above = self._seen[known].T
            seed = seed_for(self._seed, "mentor", epoch)
            self.mentor = taught(losses, above, self._right[known], seed=seed, bar=self._bar)
            self._taught.fill_(True)
        self._seen.fill_(torch.nan)

    def weights_of(self, batch: Batch, losses: Tensor) -> Tensor:
        """Weights v of a batch, (b,)."""
        typical = torch.quantile(losses.float(), 1 - self._noise)
        later = DECAY * self._average + (1 - DECAY) * typical
        self._average = torch.where(self._average.isnan(), typical, later)
        above = losses - self._average
        self._remember(batch, losses, above)
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

    def _remember(self, batch: Batch, losses: Tensor, above: Tensor) -> None:
        places = rows_of(self._place, batch.samples)
        known = places != UNKNOWN
        self._seen[places[known]] = torch.stack([losses[known], above[known]], dim=1).to(self._seen)

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

    minimise(mentor, loss, name="MentorNet: mentor", steps=STEPS, lr=RATE, bar=bar)
    return mentor


def learn(work: Work) -> Made:
    """Train the student; the mentor is the data-driven one where verified samples are given."""
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
