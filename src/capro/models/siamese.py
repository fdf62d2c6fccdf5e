"""The query branch with its gradient, the key branch that follows it, and the dictionary of keys."""

from __future__ import annotations

import copy
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from capro.models.backbones import Backbone
from capro.models.heads import HeadOutputs, Heads, Projector


class Dictionary(nn.Module):
    """A first-in-first-out queue of unit key embeddings.

    Its state is three plain buffers (`store`, `pointer`, `filled`), so that it moves with `.to()`
    and goes into a safetensors checkpoint as it is. With several ranks the caller gathers the keys
    and every rank enqueues the same ones in the same order.

    >>> queue = Dictionary(size=3, dim=1)
    >>> queue.enqueue(torch.tensor([[1.0], [2.0]]))
    >>> queue.keys.flatten().tolist()
    [1.0, 2.0]
    >>> queue.enqueue(torch.tensor([[3.0], [4.0]]))  # 4 overwrites 1, the oldest
    >>> queue.keys.flatten().tolist()
    [4.0, 2.0, 3.0]
    """

    store: Tensor
    pointer: Tensor
    filled: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("store", torch.zeros(size, dim))
        # Kept on the device as tensors for the checkpoint only; `_next` and `_count` mirror them on
        # the host, because reading a tensor each step would stop a GPU's queue.
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self._next = 0
        self._count = 0
        self.register_load_state_dict_post_hook(_mirror)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> Tensor:
        """The filled part, (n <= Q, d_p): a view in storage order, valid until the next enqueue."""
        return self.store[: self._count]

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Add (b, d_p) keys in their order; the oldest leave. Of more than Q the last Q stay."""
        keys = keys[-self.size :].to(self.store)
        b = len(keys)
        first = min(b, self.size - self._next)  # up to the end of the storage, the rest wraps round
        self.store[self._next : self._next + first] = keys[:first]
        self.store[: b - first] = keys[first:]
        self._next = (self._next + b) % self.size
        self._count = min(self._count + b, self.size)
        self.pointer.fill_(self._next)
        self.filled.fill_(self._count)


def _mirror(module: nn.Module, _: object) -> None:
    if isinstance(module, Dictionary):
        module._next = int(module.pointer)
        module._count = int(module.filled)


class SiameseOutputs(NamedTuple):
    """The query branch's outputs, and z' (b, d_p) where a key view was given."""

    query: HeadOutputs
    z_key: Tensor | None


class Siamese(nn.Module):
    """Query branch and momentum key branch.

    Args:
        backbone: the encoder of the query branch. `FeatureBackbone` for cached features.
        heads: heads for the encoder's width.

    >>> from capro.models.backbones import FeatureBackbone
    >>> net = Siamese(FeatureBackbone(8), Heads(8, 4, 3, tau=0.1)).eval()
    >>> v = torch.randn(2, 8)
    >>> out = net(v, v)
    >>> bool((out.query.z == out.z_key).all())  # identical at the start
    True
    """

    def __init__(self, backbone: Backbone, heads: Heads) -> None:
        super().__init__()
        self.encoder = backbone
        self.heads = heads
        # A backbone may hold weights that never train (a mask token): unfreezing leaves them alone.
        self._learns = [name for name, p in backbone.named_parameters() if p.requires_grad]
        self._frozen = False
        self.key_encoder: Backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.key_projector: Projector = copy.deepcopy(heads.projector).requires_grad_(False)

    def forward(self, query: Tensor, key: Tensor | None = None) -> SiameseOutputs:
        """Both branches in one call, so that a distributed wrapper sees one forward a step.

        Args:
            query: normalised images (b, 3, h, w), or cached features (b, d_v).
            key: the key view, the same shape. Shuffled BN is the caller's: shuffle before,
                unshuffle `z_key` after.
        """
        # keys first: the backward pass then finds the query's activations still in the cache
        z_key = None if key is None else self.embed_key(key)
        return SiameseOutputs(self.heads(self.encoder(query)), z_key)

    @torch.no_grad()
    def embed_key(self, key: Tensor) -> Tensor:
        """Z' of a view, (b, d_p), without gradient."""
        z_key: Tensor = self.key_projector(self.key_encoder(key))
        return z_key

    @torch.no_grad()
    def update_key(self, momentum: float) -> None:
        """Move the key weights: key <- m key + (1 - m) query. Call it after the optimiser."""
        keys = (*self.key_encoder.parameters(), *self.key_projector.parameters())
        queries = (*self.encoder.parameters(), *self.heads.projector.parameters())
        # lerp is exact where both are equal, so a frozen encoder's copy does not drift
        torch._foreach_lerp_(keys, queries, 1 - momentum)  # one call for all weights

    @torch.no_grad()
    def reset_key(self) -> None:
        """Make the key branch identical to the query branch again, BatchNorm statistics as well."""
        self.key_encoder.load_state_dict(self.encoder.state_dict())
        self.key_projector.load_state_dict(self.heads.projector.state_dict())

    def freeze_encoder(self, frozen: bool) -> None:
        """Fix or release the encoder.

        Frozen: no gradient, and both encoders stay in eval mode whatever `train()` says, so that
        neither weights nor batch statistics move. Released: exactly the weights that could train
        before train again.
        """
        self._frozen = frozen
        learns = set(self._learns)
        for name, parameter in self.encoder.named_parameters():
            parameter.requires_grad_(not frozen and name in learns)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._frozen:
            self.encoder.eval()
            self.key_encoder.eval()
        return self
