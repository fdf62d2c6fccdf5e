"""Visual prototypes: where a class is in the embedding space (docs/paper.md).

A class that no sample has shown yet has a zero vector: it is *absent*. Every other prototype has
unit norm. Costs for a batch of b and C classes of width d: `polish` O(b log b + (b + C) d),
`similarity` O(b C d), the multi-label forms O(b C d).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Below this a mean has cancelled out, and its direction would be rounding noise.
_CANCELLED = 1e-6


def unit(sums: Tensor) -> Tensor:
    """Scale the last axis to norm one; what has cancelled out becomes zero, that is, absent.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    norm = sums.norm(dim=-1, keepdim=True)
    return torch.where(norm > _CANCELLED, sums / norm.clamp(min=_CANCELLED), 0.0)


def present(prototypes: Tensor) -> Tensor:
    """Which prototypes some sample has shown: (..., d) -> (...) bool."""
    return (prototypes != 0).any(dim=-1)


# ---------------------------------------------------------------------------- single label


@torch.no_grad()
def class_sums(z: Tensor, y: Tensor, *, n_classes: int) -> Tensor:
    """Sum of the embeddings of each class, (n, d) -> (C, d); samples with y < 0 do not count.

    `unit` of it are the first prototypes, the normalised class means of the anchors (paper, Visual
    Prototypes): the mean's direction is the sum's. Sums of blocks, and of ranks, add up.

    >>> unit(class_sums(torch.eye(2), torch.tensor([1, 1]), n_classes=2))
    tensor([[0.0000, 0.0000],
            [0.7071, 0.7071]])
    """
    slot = torch.where(y >= 0, y, n_classes)  # one spare row takes the ignored: shapes stay static
    return z.new_zeros(n_classes + 1, z.shape[1]).index_add_(0, slot, z)[:n_classes]


@torch.no_grad()
def polish(prototypes: Tensor, z: Tensor, y: Tensor, *, momentum: float) -> Tensor:
    """Move prototypes towards a batch: m^n z^c + (1-m) sum_i m^(n-i) z_i, then one normalisation.

    This is z^c <- m z^c + (1-m) z_i over the n samples of class c in batch order, without a loop
    (docs/paper.md). Later samples weigh more, so ranks must gather in one fixed order.

    Args:
        prototypes: (C, d), each of unit norm or zero; not changed in place.
        z: query embeddings, (b, d); no gradient flows.
        y: their classes, (b,) int64; samples with y < 0 are ignored.
        momentum: m_p in [0, 1].

    Returns:
        (C, d). A class without a sample stays as it is; an absent class takes the batch's mean; a
        prototype that its samples cancel exactly stays, because no direction would be left.

    >>> polish(torch.eye(2), torch.tensor([[0.0, 1.0]]), torch.tensor([0]), momentum=0.5)
    tensor([[0.7071, 0.7071],
            [0.0000, 1.0000]])
    """
    n_classes = len(prototypes)
    z = z.to(prototypes.dtype)
    slot = torch.where(y >= 0, y, n_classes)
    # Place of each sample within its class, from the end: a stable sort keeps the batch's order.
    slot, order = slot.sort(stable=True)
    z = z[order]
    counts = torch.zeros(n_classes + 1, dtype=y.dtype, device=y.device)
    counts.index_add_(0, slot, torch.ones_like(slot))
    later = counts.cumsum(0)[slot] - 1 - torch.arange(len(slot), device=y.device)  # n - i, (b,)
    # An absent class has nothing to decay from: its samples weigh the same.
    absent = functional.pad(~present(prototypes), (0, 1))[slot]
    weight = torch.where(absent, 1.0, (1 - momentum) * momentum ** later.to(z.dtype))
    sums = z.new_zeros(n_classes + 1, z.shape[1]).index_add_(0, slot, weight[:, None] * z)
    counts = counts[:n_classes, None]
    moved = unit(momentum ** counts.to(z.dtype) * prototypes + sums[:n_classes])  # (C, d)
    return torch.where((counts > 0) & present(moved)[:, None], moved, prototypes)


def prototype_logits(z: Tensor, prototypes: Tensor, *, tau: float) -> Tensor:
    """Scaled products z . z^c / tau, (b, C); absent classes are -inf: a softmax gives them nothing.

    Where every class is absent all logits are 0: nothing is known, the softmax is uniform.
    """
    seen = present(prototypes)
    mask = torch.zeros_like(prototypes[:, 0]).masked_fill(~seen & seen.any(), -torch.inf)  # (C,)
    # One pass over (b, C): temperature and mask ride on the product, which the dictionary feels.
    return torch.addmm(mask.to(z), z / tau, prototypes.to(z).T)


def similarity(z: Tensor, prototypes: Tensor, *, tau: float) -> Tensor:
    """Softmax over prototypes, r of Eq. 6: (b, d) x (C, d) -> (b, C), rows sum to one.

    An absent class gets no mass; where all are absent the row is uniform.

    >>> similarity(torch.tensor([[1.0, 0.0]]), torch.zeros(2, 2), tau=0.1)
    tensor([[0.5000, 0.5000]])
    """
    return prototype_logits(z, prototypes, tau=tau).softmax(dim=1)


# ---------------------------------------------------------------------------- multi-label


@torch.no_grad()
def class_sums_multi_label(z_sub: Tensor, y: Tensor, anchored: Tensor) -> Tensor:
    """`class_sums` in every class subspace, (n, C, d) -> (C, 2, d) (docs/paper.md).

    At n anchors and C classes z_sub is n C d numbers: embed in blocks, add, then `unit`.

    Args:
        z_sub: z_c, unit embeddings per class subspace, (n, C, d).
        y: web labels in {0, 1}, (n, C).
        anchored: whether the sample is an anchor of the class, (n, C) bool.

    Returns:
        (C, 2, d): index 1 from the anchors of c, index 0 from anchors of other classes without c.
        Where there is no such sample the vector is zero.
    """
    is_anchor = anchored.any(dim=1, keepdim=True)
    negative = is_anchor & ~anchored & (y == 0)  # another class's anchor that does not carry c
    members = torch.stack([negative, anchored], dim=-1).to(z_sub.dtype)  # (n, C, 2)
    return torch.einsum("nck,ncd->ckd", members, z_sub)


@torch.no_grad()
def polish_multi_label(prototypes: Tensor, z_sub: Tensor, y: Tensor, *, momentum: float) -> Tensor:
    """`polish` in every class subspace, for the negative and the positive prototype.

    Args:
        prototypes: (C, 2, d), index 0 negative, 1 positive.
        z_sub: (b, C, d); no gradient flows.
        y: labels (b, C): 1 polishes the positive prototype, 0 the negative, < 0 neither.
        momentum: m_p in [0, 1].

    Returns:
        (C, 2, d), with the same treatment of absent and cancelled prototypes as `polish`.
    """
    members = torch.stack([y == 0, y == 1], dim=-1)  # (b, C, 2)
    places = members.cumsum(dim=0)  # i, counted from one, where members
    counts = members.sum(dim=0)  # n, (C, 2)
    dtype = prototypes.dtype
    weight = (1 - momentum) * momentum ** (counts - places).to(dtype)
    weight = torch.where(present(prototypes), weight, 1.0) * members
    sums = torch.einsum("bck,bcd->ckd", weight, z_sub.to(dtype))
    moved = unit(momentum ** counts[..., None].to(dtype) * prototypes + sums)
    return torch.where((counts > 0)[..., None] & present(moved)[..., None], moved, prototypes)


def prototype_margin(z_sub: Tensor, prototypes: Tensor, *, tau: float) -> Tensor:
    """Margin z_c . (positive - negative) / tau, (b, C): the logit of the two-way softmax.

    Where either prototype of a class is absent there is nothing to compare: the margin is 0.
    """
    known = present(prototypes).all(dim=1)  # (C,)
    direction = (prototypes[:, 1] - prototypes[:, 0]) * known[:, None]  # (C, d)
    return torch.einsum("bcd,cd->bc", z_sub, direction) / tau


def similarity_multi_label(z_sub: Tensor, prototypes: Tensor, *, tau: float) -> Tensor:
    """Positive share of the two-way softmax, r per class: (b, C, d) x (C, 2, d) -> (b, C).

    A class with an absent prototype gives one half, no evidence either way.
    """
    return prototype_margin(z_sub, prototypes, tau=tau).sigmoid()
