"""The offline pass: Eq. 7 on unaugmented images gives every training sample a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import TrainSettings
from capro.labels import fused_score, with_text
from capro.nets.siamese import Siamese
from capro.train.batches import Inputs, plain_batches
from capro.train.tasks import Task
from capro.witness import TextWitness

BLOCK = 256


@dataclass(frozen=True)
class Verdicts:
    """What the rule says of every training row, and what it looked at."""

    labels: NDArray[np.int64]  # (n,) or (n, C); -1: out
    decisions: NDArray[np.int64]  # same shape, numbers of Task.names
    fused: NDArray[np.float32]  # o, (n, C)
    classifier: NDArray[np.float32]  # p, (n, C)
    similarity: NDArray[np.float32]  # r, (n, C)
    text: NDArray[np.float32] | None = None  # t, (n, C), where texts were heard


@torch.no_grad()
def judge(
    net: Siamese,
    task: Task,
    prototypes: Tensor,
    labels: Tensor,
    anchored: Tensor,
    inputs: Inputs,
    positions: NDArray[np.int64],
    settings: TrainSettings,
    witness: TextWitness | None = None,
) -> Verdicts:
    """Apply the label rule to every training row (Eq. 6 and 7), in eval mode, without augmentation.

    Args:
        net: After step 2.
        task: One label or several.
        prototypes: After step 2.
        labels: Web labels, (n,) or (n, C).
        anchored: Same shape; protected under the policy ``capro``.
        inputs: Where images or features come from.
        positions: Manifest position of each row.
        settings: gamma, alpha, text_weight and policy.
        witness: What the texts say, for a ``text_weight`` above 0.
    """
    net.eval()
    device = labels.device
    parts: list[tuple[Tensor, ...]] = []
    for block, x in plain_batches(inputs, positions, size=BLOCK, device=device):
        rows = torch.from_numpy(block).to(device)
        out = net(x).query
        p = task.probabilities(out.p)
        r = task.similarity(out.z, out.z_c, prototypes)
        o = fused_score(p, r, alpha=settings.alpha)
        t = () if witness is None else (witness.of(block).to(o),)
        if t:
            o = with_text(o, t[0], weight=settings.text_weight)
        adjusted, decisions = task.adjust(
            o,
            labels[rows],
            anchored[rows],
            gamma=settings.gamma,
            protect=settings.policy == "capro",
        )
        parts.append((adjusted, decisions, o, p, r, *t))
    whole = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return Verdicts(*whole)
