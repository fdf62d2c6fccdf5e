"""Heads on the visual feature v (docs/paper.md, Eq. 1).

projector      v -> z   (b, d_v) -> (b, d_p), unit norm
reconstructor  z -> v~  (b, d_p) -> (b, d_v)
classifier     v -> p   (b, d_v) -> (b, C), logits
auxiliary      z -> q   (b, d_p) -> (b, C), logits over the temperature
subspaces      z -> z_c (b, d_p) -> (b, C, d_p), unit norm each; multi-label only

Every head returns logits, not probabilities: the losses want log-softmax or log-sigmoid.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor, nn

# F.normalize's own 1e-12 is 0 in half precision: a zero row would become NaN.
NORM_EPS = 1e-6


def unit_norm(x: Tensor) -> Tensor:
    """L2-normalise the last dimension; a zero vector stays zero.

    >>> unit_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return F.normalize(x, dim=-1, eps=NORM_EPS)


class Projector(nn.Module):
    """Linear(d_v, d_v), ReLU, Linear(d_v, d_p), L2-normalised: v -> z."""

    def __init__(self, feature_dim: int, embedding_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(feature_dim, feature_dim)
        self.out = nn.Linear(feature_dim, embedding_dim)

    def forward(self, v: Tensor) -> Tensor:
        return unit_norm(self.out(F.relu(self.hidden(v))))  # (b, d_v) -> (b, d_p)


class Reconstructor(nn.Module):
    """Linear(d_p, d_v), ReLU, Linear(d_v, d_v): z -> v~."""

    def __init__(self, feature_dim: int, embedding_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(embedding_dim, feature_dim)
        self.out = nn.Linear(feature_dim, feature_dim)

    def forward(self, z: Tensor) -> Tensor:
        reconstruction: Tensor = self.out(F.relu(self.hidden(z)))
        return reconstruction  # (b, d_p) -> (b, d_v)


class Auxiliary(nn.Linear):
    """Linear(d_p, C) over the temperature: z -> logits of q.

    z has unit norm, so without the temperature q could never be confident.
    """

    def __init__(self, embedding_dim: int, classes: int, *, tau: float) -> None:
        super().__init__(embedding_dim, classes)
        self.tau = tau

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z) / self.tau  # (b, d_p) -> (b, C)


class Subspaces(nn.Module):
    """One linear map per class, z -> z_c, each L2-normalised (docs/paper.md).

    The C maps are one weight (C, d_p, d_p) and one einsum: C d_p^2 multiply-adds a sample, and
    b C d_p numbers of output, which is the larger memory (b=256, C=81, d_p=128: 10 MB).
    """

    def __init__(self, embedding_dim: int, classes: int) -> None:
        super().__init__()
        # The identity: z_c begins as z, which step 1 has taught to tell classes apart. Random maps would
        # hide that, and their bias alone would make positive and negative prototypes nearly equal.
        self.weight = nn.Parameter(torch.eye(embedding_dim).repeat(classes, 1, 1))
        self.bias = nn.Parameter(torch.zeros(classes, embedding_dim))

    def forward(self, z: Tensor) -> Tensor:
        z_c = torch.einsum("bi,coi->bco", z, self.weight) + self.bias
        return unit_norm(z_c)  # (b, d_p) -> (b, C, d_p)


class HeadOutputs(NamedTuple):
    """Outputs of the heads for a batch; z_c is None unless multi-label."""

    v: Tensor  # (b, d_v), the input
    p: Tensor  # (b, C), logits
    z: Tensor  # (b, d_p), unit norm
    q: Tensor  # (b, C), logits over tau
    v_rec: Tensor  # (b, d_v), v~
    z_c: Tensor | None  # (b, C, d_p), unit norm

    @property
    def compared(self) -> Tensor:
        """What is compared with prototypes: z, or z_c for multi-label data."""
        return self.z if self.z_c is None else self.z_c


class Heads(nn.Module):
    """All heads of one branch.

    >>> heads = Heads(feature_dim=8, embedding_dim=4, classes=3, tau=0.1)
    >>> out = heads(torch.randn(2, 8))
    >>> tuple(out.p.shape), tuple(out.z.shape), tuple(out.v_rec.shape), out.z_c
    ((2, 3), (2, 4), (2, 8), None)
    """

    def __init__(
        self, feature_dim: int, embedding_dim: int, classes: int, *, tau: float, multi_label: bool = False
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.projector = Projector(feature_dim, embedding_dim)
        self.reconstructor = Reconstructor(feature_dim, embedding_dim)
        self.classifier = nn.Linear(feature_dim, classes)
        self.auxiliary = Auxiliary(embedding_dim, classes, tau=tau)
        # absent, not merely unused, for single label: distributed training objects to idle weights
        self.subspaces = Subspaces(embedding_dim, classes) if multi_label else None

    def compared(self, z: Tensor) -> Tensor:
        """What is compared with prototypes: z itself, or z_c for multi-label data."""
        return z if self.subspaces is None else self.subspaces(z)

    def forward(self, v: Tensor) -> HeadOutputs:
        z = self.projector(v)
        return HeadOutputs(
            v=v,
            p=self.classifier(v),
            z=z,
            q=self.auxiliary(z),
            v_rec=self.reconstructor(z),
            z_c=None if self.subspaces is None else self.subspaces(z),
        )
