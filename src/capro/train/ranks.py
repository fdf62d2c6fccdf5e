"""Several ranks as one: gathering rows and averaging gradients through accelerate.

With one rank every function is the identity. Gradients are averaged by one flat all-reduce after
the backward pass instead of a DDP wrapper: heads that a setting switches off, an encoder that is
frozen for some epochs and mix-up's second forward need no special case that way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Ranks:
    """This rank among others."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.index: int = accelerator.process_index
        self.count: int = accelerator.num_processes

    @property
    def main(self) -> bool:
        """Whether this rank writes files."""
        return self.index == 0

    def gather(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """All ranks' rows in rank order, (b_r, ...) -> (sum of sizes, ...); ``sizes`` of every rank."""
        if self.count == 1:
            return rows
        widest = max(sizes)
        padded = rows.new_zeros((widest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered: Tensor = self.accelerator.gather(padded)  # (ranks * widest, ...)
        parts = torch.split(gathered, widest)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their mean over the ranks."""
        if self.count == 1:
            return
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not grads:
            return
        flat = torch.cat([grad.flatten() for grad in grads])
        flat = self.accelerator.reduce(flat, reduction="mean")
        place = 0
        for grad in grads:
            grad.copy_(flat[place : place + grad.numel()].view_as(grad))
            place += grad.numel()

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Fill tensors with the main rank's: batch statistics differ, since no rank sees all."""
        if self.count == 1:
            return
        from accelerate.utils import broadcast

        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        if not floats:
            return
        flat = broadcast(torch.cat([tensor.flatten() for tensor in floats]))
        for tensor, part in zip(floats, flat.split([t.numel() for t in floats]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Until every rank is here."""
        self.accelerator.wait_for_everyone()
