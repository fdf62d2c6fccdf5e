"""Made-up cases that several test files need."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from capro.core import plus

SEEDS = st.integers(0, 10_000)


FEW = settings(max_examples=25, deadline=None)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def distributions(n, k, seed):
    return torch.randn(n, k, generator=generator(seed)).mul(2).softmax(1)


def unit_rows(n, d, seed):
    return normalize(torch.randn(n, d, generator=generator(seed)), dim=1)


def made_up(n=240, classes=4, seed=0, noise=0.3, none=0.0, missing=0.2):
    """Pictures and texts around the centres of their true classes; some labels are wrong."""
    g = generator(seed)
    centres = normalize(torch.randn(classes + 1, 16, generator=g), dim=1)
    meanings = normalize(torch.randn(classes + 1, 12, generator=g), dim=1)
    z = torch.arange(n) % classes
    z = torch.where(torch.rand(n, generator=g) < none, classes, z)
    wrong = torch.rand(n, generator=g) < noise
    other = torch.randint(0, classes, (n,), generator=g)
    y = torch.where(wrong | (z == classes), other, z)
    x = plus.centred(centres[z] * 3 + torch.randn(n, 16, generator=g) * 0.8)
    text = normalize(meanings[z] + 0.2 * torch.randn(n, 12, generator=g), dim=1)
    text = text * (torch.rand(n, 1, generator=g) >= missing)
    return x, text, meanings[:classes], y, z
