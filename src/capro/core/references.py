"""Reference providers: what a sample's prediction is regularised towards (ablation of the paper).

One interface: from the batch's outputs and the dictionary to a target distribution and its loss
L_ref, which takes the place of L_bts in the total, (1 - weight) L_cls + weight L_ref. Every provider
has the weight of its own publication (docs/paper.md): `smoothing` and `bootstrap`
carry their coefficient in the target, so their weight is 1; so is that of `scc` and `mixup` unless it
is set otherwise; lambda_bts belongs to `cb`, and to `ncr` where that has no weight of its own. The
form follows the labels: (b,) one class each, (b, C) multi-label.

`mixup` needs a forward of its own, so that prototypes, dictionary and label rule never see a mixed
image: the step mixes the inputs with `Provider.mix`, runs encoder and classifier on them, and hands
the logits over as `Outputs.p_mixed_logits`.

Costs: `cb` O(b Q (d + C)), `ncr` O(b^2 (d_v + C)), the others O(b C) plus mix-up's forward.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn import functional

from capro.core.losses import (
    Count,
    bootstrap_loss,
    bootstrap_loss_multi_label,
    classification_loss,
    classification_loss_multi_label,
    collective_target,
)
from capro.errors import RunError


class Reference(NamedTuple):
    """A provider's answer. Rows of `target` (b, C) of samples that are out mean nothing."""

    target: Tensor
    loss: Tensor
    mixed: Tensor | None = None  # mix-up's loss where it stands beside L_ref, not in its place


@dataclass(frozen=True)
class Mixture:
    """Pairs within a batch: sample i keeps `share`, sample order[i] brings the rest."""

    order: Tensor  # (b,) a permutation
    share: float

    def inputs(self, x: Tensor) -> Tensor:
        """Mix images (b, 3, h, w), features (b, d), or any other float tensor of the batch."""
        return self.share * x + (1 - self.share) * x[self.order]

    def targets(self, labels: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
        """Mix label rows (b, C) of the samples that are not out: target (b, C) and weight (b,).

        Half of a pair that is out takes its share of the weight along, and no more.
        """
        own, other = self.share * clean, (1 - self.share) * clean[self.order]
        weight = own + other
        mixed = own[:, None] * labels + other[:, None] * labels[self.order]
        return mixed / torch.where(weight > 0, weight, 1.0)[:, None], weight


@dataclass(frozen=True)
class Outputs:
    """What a training step has at hand for one batch."""

    p_logits: Tensor  # (b, C)
    q_logits: Tensor  # (b, C), with their temperature
    v: Tensor  # (b, d_v)
    z: Tensor  # (b, d_p)
    labels: Tensor  # refined: (b,) int64, -1 out; or (b, C) in {0, 1}, rows of -1 out
    keys: Tensor | None = None  # (Q, d_p), if the provider uses_dictionary
    q_keys: Tensor | None = None  # (Q, C) probabilities
    r_keys: Tensor | None = None  # (Q, C) probabilities
    mixture: Mixture | None = None  # if the provider mixes
    p_mixed_logits: Tensor | None = None  # (b, C) of the mixed inputs
    pos_weight: Tensor | None = None  # (C,), multi-label

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def clean(self) -> Tensor:
        """Which samples are not out, (b,) bool."""
        return (self.labels >= 0).all(dim=1) if self.multi_label else self.labels >= 0

    @property
    def label_rows(self) -> Tensor:
        """Labels as rows (b, C) of floats; what rows of samples that are out hold is not used."""
        rows = self.labels.clamp(min=0)
        if not self.multi_label:
            rows = functional.one_hot(rows, self.p_logits.shape[1])
        return rows.to(self.p_logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)

    def cross_entropy(self, logits: Tensor, target: Tensor, weight: Tensor, count: Count) -> Tensor:
        if self.multi_label:
            return classification_loss_multi_label(
                logits, target, pos_weight=self.pos_weight, weight=weight, count=count
            )
        return classification_loss(logits, target, weight=weight, count=count)

    def divergence(self, logits: Tensor, target: Tensor, weight: Tensor, count: Count) -> Tensor:
        kl = bootstrap_loss_multi_label if self.multi_label else bootstrap_loss
        return kl(logits, target, weight=weight, count=count)


def self_contained_target(s: Tensor, labels: Tensor, *, power: float = 1) -> tuple[Tensor, Tensor]:
    """SCC's target c y + (1 - c) s, (n, C), and its confidence c = s_y^power, (n, 1), or by class (n, C).

    Args:
        s: Self-labels, (n, C).
        labels: y, (n,), or multi-label (n, C): each class then has its own confidence.
        power: 1 for the reference provider, 2 in the authors' scripts (bench/baselines/losses.py).

    >>> target, _ = self_contained_target(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.tensor([0, 0]), power=2)
    >>> [[round(share, 3) for share in row] for row in target.tolist()]
    [[0.625, 0.375], [0.109, 0.891]]
    """
    if labels.ndim == 1:
        y = functional.one_hot(labels, s.shape[1]).to(s)
        c = (y * s).sum(dim=1, keepdim=True) ** power
    else:
        y = labels.to(s)
        c = (y * s + (1 - y) * (1 - s)) ** power
    return c * y + (1 - c) * s, c


def neighbour_mean(p: Tensor, v: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """NCR's mean prediction of the k nearest others of a batch, (b, C), and who has a similar other, (b,).

    Args:
        p: Predictions, (b, C).
        v: Features, (b, d): neighbours weigh by their cosine, negative ones nothing.
        k: Neighbours.
    """
    unit = functional.normalize(v, dim=1)
    own = torch.eye(len(v), dtype=torch.bool, device=v.device)
    cosine = (unit @ unit.T).clamp(min=0).masked_fill(own, 0)
    best, where = cosine.topk(min(k, len(v)), dim=1)
    w = torch.zeros_like(cosine).scatter(1, where, best)  # (b, b)
    mass = w.sum(dim=1, keepdim=True)
    return w @ p / torch.where(mass > 0, mass, 1.0), mass[:, 0] > 0


@dataclass(frozen=True)
class Provider:
    """`none`: the reference is the label itself, so that the total is L_cls for any lambda."""

    mixes: ClassVar[bool] = False  # the step must call mix and run the mixed inputs
    uses_dictionary: ClassVar[bool] = False  # the step must compute q' and r' of the keys

    def weights(self, lambda_bts: float) -> dict[str, float]:  # noqa: ARG002
        """Weight of L_ref, as `bts`, and of a mix-up loss beside it, as `mix`."""
        return {"bts": 1.0}

    def mix(self, batch_size: int, generator: torch.Generator) -> Mixture | None:  # noqa: ARG002
        """Draw how to mix a batch; None if the provider does not mix."""
        return None

    def target(self, out: Outputs) -> Tensor:
        """The target distribution, (b, C)."""
        return out.label_rows

    def loss(self, out: Outputs, *, count: Count = None) -> Reference:
        """Target and L_ref of a batch; `count` as in `capro.core.losses`."""
        target = self.target(out)
        loss = out.cross_entropy(out.p_logits, target, out.clean, count)
        return Reference(target.detach(), loss)


@dataclass(frozen=True)
class Smoothing(Provider):
    """Label smoothing: `smoothing` of the mass is spread evenly (multi-label: towards 1/2)."""

    smoothing: float = 0.1

    def target(self, out: Outputs) -> Tensor:
        even = 0.5 if out.multi_label else 1 / out.p_logits.shape[1]
        return (1 - self.smoothing) * out.label_rows + self.smoothing * even


@dataclass(frozen=True)
class Bootstrap(Provider):
    """Reed et al. 2015: beta y + (1 - beta) p, where p is the model's own belief.

    The default is the released scripts' (Reed: 0.95 soft, 0.8 hard). Soft by default. Its gradient
    must flow through the target as well: with p fixed, the second half would have no gradient and leave
    a scaled cross-entropy. `bootstrap_hard` takes the decision instead of the belief.
    """

    bootstrap_beta: float = 0.9
    bootstrap_hard: bool = False

    def target(self, out: Outputs) -> Tensor:
        p = out.probabilities(out.p_logits)
        if self.bootstrap_hard and out.multi_label:
            p = (p > 0.5).to(p)
        elif self.bootstrap_hard:
            p = functional.one_hot(p.argmax(dim=1), p.shape[1]).to(p)
        return self.bootstrap_beta * out.label_rows + (1 - self.bootstrap_beta) * p


@dataclass(frozen=True)
class SelfContainedConfidence(Provider):
    """SCC, Yang et al. 2020: c y + (1 - c) s, s a self-label, c its confidence in the label.

    Their c CE(y) + (1 - c) CE(s) is the cross-entropy with that mean. s is the auxiliary classifier's
    belief: from p itself the second half would have no gradient.
    """

    scc_weight: float = 1.0

    def weights(self, lambda_bts: float) -> dict[str, float]:  # noqa: ARG002
        return {"bts": self.scc_weight}

    def target(self, out: Outputs) -> Tensor:
        s = out.probabilities(out.q_logits.detach())
        return self_contained_target(s, out.labels.clamp(min=0))[0]


@dataclass(frozen=True)
class NeighbourConsistency(Provider):
    """NCR, Iscen et al. 2022: KL(p || the mean prediction of the nearest others in the batch).

    Weights are the cosines of v, clipped at 0, of the `neighbours` nearest; the sample itself is
    excluded. Samples that are out serve as neighbours, but have no loss of their own; nor has a
    sample without any similar other.
    """

    neighbours: int = 10
    ncr_temperature: float = 2.0
    ncr_weight: float | None = None  # None: lambda_bts

    def weights(self, lambda_bts: float) -> dict[str, float]:
        return {"bts": lambda_bts if self.ncr_weight is None else self.ncr_weight}

    def target(self, out: Outputs) -> Tensor:
        return self._mean(out)[0]

    def loss(self, out: Outputs, *, count: Count = None) -> Reference:
        target, similar = self._mean(out)
        logits = out.p_logits / self.ncr_temperature
        return Reference(target, out.divergence(logits, target, out.clean & similar, count))

    def _mean(self, out: Outputs) -> tuple[Tensor, Tensor]:
        """Mean prediction of the neighbours, (b, C), and who has a neighbour, (b,)."""
        predictions = out.probabilities(out.p_logits.detach() / self.ncr_temperature)
        return neighbour_mean(predictions, out.v.detach(), k=self.neighbours)


@dataclass(frozen=True)
class CollectiveBootstrap(Provider):
    """CB, ours: KL(q || b) against the dictionary's label, Eq. 8 and 9.

    With `to_classifier` KL(p || b) is added. In the paper q's loss reaches p through the encoder
    that they share; where the encoder is frozen, it would not reach p at all.
    """

    uses_dictionary: ClassVar[bool] = True

    tau: float = 0.1
    alpha: float = 0.5
    to_classifier: bool = False

    def weights(self, lambda_bts: float) -> dict[str, float]:
        return {"bts": lambda_bts}

    def target(self, out: Outputs) -> Tensor:
        if out.keys is None or out.q_keys is None or out.r_keys is None:
            raise RunError(
                f"{type(self).__name__} got no dictionary",
                hint="give keys, q_keys and r_keys to Outputs where uses_dictionary is set",
            )
        return collective_target(out.z, out.keys, out.q_keys, out.r_keys, tau=self.tau, alpha=self.alpha)

    def loss(self, out: Outputs, *, count: Count = None) -> Reference:
        target = self.target(out)
        loss = out.divergence(out.q_logits, target, out.clean, count)
        if self.to_classifier:
            loss = loss + out.divergence(out.p_logits, target, out.clean, count)
        return Reference(target, loss)


@dataclass(frozen=True)
class Mixup(Provider):
    """Mix-up, Zhang et al. 2018: cross-entropy of mixed inputs against labels mixed the same way.

    One share per batch, Beta(a, a) with a = `mixup_alpha` (0.8 in the released scripts, where it takes
    the place of L_cls as a whole). The weights of a mixed batch add up to
    the number of its clean samples, so `count` is the same as for the other providers.
    """

    mixes: ClassVar[bool] = True

    mixup_alpha: float = 0.8
    mixup_weight: float = 1.0

    def weights(self, lambda_bts: float) -> dict[str, float]:  # noqa: ARG002
        return {"bts": self.mixup_weight}

    def mix(self, batch_size: int, generator: torch.Generator) -> Mixture:
        """Draw share and pairs from `generator` alone, so that a resumed run draws the same."""
        # torch's Beta takes no generator: one uniform number through the inverse distribution.
        u = torch.rand((), generator=generator, device=generator.device, dtype=torch.float64)
        share = float(betaincinv(self.mixup_alpha, self.mixup_alpha, float(u)))
        order = torch.randperm(batch_size, generator=generator, device=generator.device)
        return Mixture(order, share)

    def loss(self, out: Outputs, *, count: Count = None) -> Reference:
        if out.mixture is None or out.p_mixed_logits is None:
            raise RunError(
                f"{type(self).__name__} got no mixed batch",
                hint="give mixture and p_mixed_logits to Outputs where mixes is set",
            )
        target, weight = out.mixture.targets(out.label_rows, out.clean)
        return Reference(target, out.cross_entropy(out.p_mixed_logits, target, weight, count))


@dataclass(frozen=True)
class CollectiveMixup(CollectiveBootstrap):
    """CB + mix-up: target and loss are CB's; mix-up's loss is added beside L_cls with its own weight.

    The released scripts add it at full weight and leave L_cls as it is.
    """

    mixes: ClassVar[bool] = True

    mixup_alpha: float = 0.8
    mixup_weight: float = 1.0

    def weights(self, lambda_bts: float) -> dict[str, float]:
        return {"bts": lambda_bts, "mix": self.mixup_weight}

    def mix(self, batch_size: int, generator: torch.Generator) -> Mixture:
        return Mixup(self.mixup_alpha).mix(batch_size, generator)

    def loss(self, out: Outputs, *, count: Count = None) -> Reference:
        mixed = Mixup(self.mixup_alpha).loss(out, count=count).loss
        return super().loss(out, count=count)._replace(mixed=mixed)


PROVIDERS: dict[str, type[Provider]] = {
    "none": Provider,
    "mixup": Mixup,
    "bootstrap": Bootstrap,
    "smoothing": Smoothing,
    "scc": SelfContainedConfidence,
    "ncr": NeighbourConsistency,
    "cb": CollectiveBootstrap,
    "cb+mixup": CollectiveMixup,
}


def provider(name: str, **settings: float) -> Provider:
    """The provider of a name, with those of the settings that are its own.

    One flat set of settings serves all providers.

    >>> provider("cb", tau=0.2, smoothing=0.3)
    CollectiveBootstrap(tau=0.2, alpha=0.5, to_classifier=False)
    """
    own = {field.name for field in fields(PROVIDERS[name])}
    return PROVIDERS[name](**{setting: value for setting, value in settings.items() if setting in own})
