"""The terms of the objective, one function each (docs/paper.md).

Conventions of every term:
- A sample that is out, label -1, leaves the term. `weight` (b,), bool or float, is the share with which
  each other sample takes part. The result is the mean over those who do; with nobody it is exactly 0, still on
  the graph, with zero gradients.
- `count` replaces the divisor. With several ranks, give the mean number of participants per rank:
  the average of the ranks' losses is then the loss of the global batch.
- Terms ending in `_multi_label` are the multi-label forms: a mean over classes within each sample.

For a batch b, Q keys, C classes and width d: L_pro is O(b C d), L_ins O(b Q d), and the collective
target O(b Q (d + C)), of which only (b, Q) and (Q, C) are kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from capro.core.prototypes import present, prototype_logits, prototype_margin

# The smallest probability of a target: bounds the gradient of KL(q || b) where b has no mass.
_FLOOR = 1e-8
_FLOOR_BINARY = 1e-6  # 1 - 1e-8 is 1 in float32

Count = Tensor | float | None


def _average(losses: Tensor, *parts: Tensor | None, count: Count) -> Tensor:
    """Mean over the samples, weighted by the product of ``parts``, (b,) -> (); 0 if there is none."""
    shares = torch.ones_like(losses)
    for part in parts:
        shares = shares if part is None else shares * part
    losses = torch.where(shares > 0, losses, 0.0)  # 0 * inf would be NaN
    divisor = shares.sum() if count is None else torch.as_tensor(count).to(losses)
    return (shares * losses).sum() / torch.where(divisor > 0, divisor, 1.0)


def _class_mean(losses: Tensor, part: Tensor) -> Tensor:
    """Mean over the classes that take part in each sample, (b, C) -> (b,)."""
    return torch.where(part, losses, 0.0).sum(dim=1) / part.sum(dim=1).clamp(min=1)


# ---------------------------------------------------------------------------- single label


def classification_loss(
    logits: Tensor, y: Tensor, *, weight: Tensor | None = None, count: Count = None
) -> Tensor:
    """Cross-entropy, L_cls of Eq. 1.

    Args:
        logits: (b, C).
        y: classes (b,) int64, or distributions (b, C). A negative class, or row, is out.
        weight: share of each sample, (b,).
        count: divisor, see the module.

    >>> classification_loss(torch.zeros(2, 4), torch.tensor([3, -1]))
    tensor(1.3863)
    """
    if y.ndim == 1:
        losses = functional.cross_entropy(logits, y.clamp(min=0), reduction="none")
        return _average(losses, y >= 0, weight, count=count)
    losses = -(y * logits.log_softmax(dim=1)).sum(dim=1)
    return _average(losses, (y >= 0).all(dim=1), weight, count=count)


def class_offsets(counts: Tensor, *, balance: float) -> Tensor:
    """What is added to the logits while a classifier trains, (C,) -> (C,): balance * log share.

    A frequent class then wins by its frequency without its weights learning it, and does not at
    test time, when nothing is added. With balance 1 the classifier learns what it would on classes
    of equal size (up to what it overfits), with 0.5 on sizes that are square roots.

    Args:
        counts: samples of each class. A class without any gets 0, so that training pushes it down.
        balance: 0 to 1; 0 gives zeros.

    >>> class_offsets(torch.tensor([90, 10]), balance=0.5)
    tensor([-0.0527, -1.1513])
    """
    share = counts.to(torch.get_default_dtype()) / counts.sum().clamp(min=1)
    return balance * torch.where(counts > 0, share, 1.0).log()


def reconstruction_loss(v_rec: Tensor, v: Tensor, *, count: Count = None) -> Tensor:
    """Squared error per feature against a detached v, in L_prj of Eq. 1 (docs/paper.md).

    The mean over features: the sum that Eq. 1 writes would swamp every other term. Needs no label,
    so a sample that is out stays in.
    """
    return _average((v_rec - v.detach()).square().mean(dim=1), count=count)


def projection_loss(
    v_rec: Tensor, v: Tensor, q_logits: Tensor, y: Tensor, *, count: Count = None,
    samples: Count = None,
) -> Tensor:  # fmt: skip
    """L_prj of Eq. 1: reconstruction of every sample plus the auxiliary cross-entropy.

    `count` is the divisor of the cross-entropy, `samples` that of the reconstruction.
    """
    auxiliary = classification_loss(q_logits, y, count=count)
    return reconstruction_loss(v_rec, v, count=samples) + auxiliary


def prototype_loss(z: Tensor, prototypes: Tensor, y: Tensor, *, tau: float, count: Count = None) -> Tensor:
    """Pull each unit embedding to its class prototype, L_pro of Eq. 5.

    Absent (zero) prototypes are masked out of the softmax, and samples of such a class leave.
    """
    logits = prototype_logits(z, prototypes, tau=tau)  # (b, d) x (d, C) -> (b, C)
    safe = y.clamp(min=0)
    losses = functional.cross_entropy(logits, safe, reduction="none")
    return _average(losses, (y >= 0) & present(prototypes)[safe], count=count)


def instance_loss(z: Tensor, z_key: Tensor, dictionary: Tensor, *, tau: float, count: Count = None) -> Tensor:
    """Separate each sample from all others, L_ins of Eq. 5. Every sample takes part, out or not.

    Args:
        z: query embeddings, (b, d).
        z_key: the samples' own keys, the positives, (b, d); no gradient flows.
        dictionary: the negatives, (Q, d), as it was before this batch is enqueued.
        tau: temperature.
        count: divisor, see the module.
    """
    positive = (z * z_key.detach()).sum(dim=1, keepdim=True)
    logits = torch.cat([positive, z @ dictionary.detach().T], dim=1) / tau  # (b, 1 + Q)
    return _average(logits.logsumexp(dim=1) - logits[:, 0], count=count)


@torch.no_grad()
def collective_target(
    z: Tensor, keys: Tensor, q_keys: Tensor, r_keys: Tensor, *, tau: float, alpha: float
) -> Tensor:
    """The dictionary's label of each sample, b of Eq. 8, without gradient. O(b Q (d + C)).

    Args:
        z: query embeddings, (b, d).
        keys: the dictionary z', (Q, d).
        q_keys: the auxiliary classifier's probabilities on the keys, (Q, C).
        r_keys: the keys' similarity to the prototypes, (Q, C).
        tau: temperature of w, a softmax of z . z' / tau.
        alpha: share of q'.

    Returns:
        (b, C). Softmax inputs give distributions; in the multi-label case q' and r' are the
        probabilities of each class, and so are the rows of b: a mean of Bernoullis is one.

    >>> keys, beliefs = torch.eye(2), torch.eye(2)
    >>> collective_target(keys[:1], keys, beliefs, beliefs, tau=1.0, alpha=0.5)
    tensor([[0.7311, 0.2689]])
    """
    w = ((z / tau) @ keys.T).softmax(dim=1)  # (b, Q)
    return w @ torch.lerp(r_keys, q_keys, alpha)  # (b, Q) x (Q, C) -> (b, C)


def bootstrap_loss(
    q_logits: Tensor, target: Tensor, *, weight: Tensor | None = None, count: Count = None
) -> Tensor:
    """KL(q || b), L_bts of Eq. 9; no gradient into b.

    b is floored at 1e-8 and renormalised: finite, and never below zero, where b has no mass.
    `weight` is where samples that are out leave: this term has no label to see it from.
    """
    log_q = q_logits.log_softmax(dim=1)
    b = target.detach().clamp(min=_FLOOR)
    log_b = (b / b.sum(dim=1, keepdim=True)).log()
    return _average((log_q.exp() * (log_q - log_b)).sum(dim=1), weight, count=count)


def total(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The paper's objective: (1 - lambda_bts) L_cls + lambda_bts L_bts + lambda_prj L_prj + ...

    Args:
        terms: `cls`, and any of `bts`, `mix`, `prj`, `pro`, `ins`. Without `bts` (step 1) L_cls is whole.
        weights: lambda of each term but `cls`.

    >>> float(total({"cls": torch.tensor(2.0), "bts": torch.tensor(1.0)}, {"bts": 0.25}))
    1.75
    """
    loss = (1 - weights.get("bts", 0.0) if "bts" in terms else 1.0) * terms["cls"]
    for name, term in terms.items():
        if name != "cls":
            loss = loss + weights[name] * term
    return loss


# ---------------------------------------------------------------------------- multi-label


def positive_weights(positives: Tensor, n_samples: int, *, power: float = 0.5) -> Tensor:
    """pos_weight sqrt(negatives / positives) per class, (C,) -> (C,) (docs/paper.md).

    Counts of zero are taken as one: a class without samples weighs like one with one sample.
    Another power than the root: 0 weighs positives like negatives, 1 makes both weigh as much in sum.

    >>> positive_weights(torch.tensor([1, 5, 0]), 10)
    tensor([3.0000, 1.0000, 3.1623])
    """
    positives = positives.to(torch.get_default_dtype())
    return ((n_samples - positives).clamp(min=1) / positives.clamp(min=1)) ** power


def classification_loss_multi_label(
    logits: Tensor,
    y: Tensor,
    *,
    pos_weight: Tensor | None = None,
    weight: Tensor | None = None,
    count: Count = None,
) -> Tensor:
    """Binary cross-entropy per class, the multi-label L_cls (docs/paper.md).

    Args:
        logits: (b, C).
        y: labels or probabilities in [0, 1], (b, C); negative entries, or whole rows, are out.
        pos_weight: (C,), see `positive_weights`.
        weight: share of each sample, (b,).
        count: divisor, see the module.
    """
    part = y >= 0
    losses = functional.binary_cross_entropy_with_logits(
        logits, y.clamp(min=0).to(logits), pos_weight=pos_weight, reduction="none"
    )
    return _average(_class_mean(losses, part), part.any(dim=1), weight, count=count)


def prototype_loss_multi_label(
    z_sub: Tensor,
    prototypes: Tensor,
    y: Tensor,
    *,
    tau: float,
    pos_weight: Tensor | None = None,
    count: Count = None,
) -> Tensor:
    """L_pro in every class subspace: a two-way softmax, (b, C, d) x (C, 2, d).

    Classes of which a prototype is absent leave; y as in `classification_loss_multi_label`.
    """
    margin = prototype_margin(z_sub, prototypes, tau=tau)  # (b, C)
    y = torch.where(present(prototypes).all(dim=1), y, -1)
    return classification_loss_multi_label(margin, y, pos_weight=pos_weight, count=count)


def bootstrap_loss_multi_label(
    q_logits: Tensor, target: Tensor, *, weight: Tensor | None = None, count: Count = None
) -> Tensor:
    """Bernoulli KL(q || b) averaged over classes, the multi-label L_bts; no gradient into b.

    The target of `collective_target` serves as it is. b is kept in [1e-6, 1 - 1e-6].
    """
    log_q, log_not_q = functional.logsigmoid(q_logits), functional.logsigmoid(-q_logits)
    b = target.detach().clamp(min=_FLOOR_BINARY, max=1 - _FLOOR_BINARY)
    losses = log_q.exp() * (log_q - b.log()) + log_not_q.exp() * (log_not_q - (-b).log1p())
    return _average(losses.mean(dim=1), weight, count=count)
