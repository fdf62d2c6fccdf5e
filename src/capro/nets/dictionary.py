"""The dictionary: the last Q key embeddings z' (method.md, Networks).

Only embeddings are kept; q' and r' of the whole dictionary are recomputed each step with the
current heads. Memory is Q d_p floats (Q=65536, d_p=128: 32 MB); enqueueing b keys is O(b d_p).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
