"""Training small networks beside the classifier: a verifier, a mentor, a graph network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from capro.pipeline import progress


def minimise(
    net: nn.Module,
    loss: Callable[[int], Tensor],
    *,
    name: str,
    steps: int,
    lr: float,
    decay: float = 0.0,
    bar: progress.Bar = progress.silent,
) -> None:
    """Adam on all weights of a network; afterwards it is in eval mode and learns no more.

    Args:
        net: What is trained, in place.
        loss: From the step's number to its loss.
        name: For the progress.
        steps: How many.
        lr: Learning rate.
        decay: L2 penalty.
        bar: Progress.

    >>> net = nn.Linear(1, 1)
    >>> minimise(net, lambda _: (net(torch.ones(1, 1)) - 3).square().sum(), name="", steps=500, lr=0.1)
    >>> round(float(net(torch.ones(1, 1))), 2)
    3.0
    """
    net.train().requires_grad_(True)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=decay)
    with bar(name, steps) as advance:
        for step in range(steps):
            optimizer.zero_grad()
            loss(step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            advance(1)
    net.eval().requires_grad_(False)
