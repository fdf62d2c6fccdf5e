"""Made-up samples and classes that test files of core share."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from capro.core.evidence import ClassMeanings, Evidence, Settled
from capro.core.linear import Centring
from capro.core.posterior import SingleLabelPosterior

SEEDS = st.integers(0, 10_000)
FEW = settings(max_examples=25, deadline=None)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def distributions(n, k, seed):
    return torch.randn(n, k, generator=generator(seed)).mul(2).softmax(1)


def unit_rows(n, d, seed):
    return normalize(torch.randn(n, d, generator=generator(seed)), dim=1)


def centred(features):
    return Centring.of(features)(features)


def settled(known):
    """From probabilities of every sample, (n, K), nan where nothing is settled."""
    at = (~known.isnan()).any(1).nonzero()[:, 0]
    return Settled(at, known[at])


def evidence(x, texts, classes, y, *, names=None, **named):
    return Evidence(x, texts, [y], ClassMeanings(classes, names=names), **named)


def single_label(x, texts, classes, y, *, rounds=0, seed=0, centres=None, **named):
    """A posterior that was fitted to samples."""
    return SingleLabelPosterior(rounds=rounds, seed=seed, centres=centres).fit(
        evidence(x, texts, classes, y, **named)
    )


def tagged(n=500, classes=4, seed=0):
    """Several things in a picture; a tag is wrong or missing; the title names what is shown."""
    g = generator(seed)
    centres = normalize(torch.randn(classes, 16, generator=g), dim=1)
    meanings = normalize(torch.randn(classes, 24, generator=g), dim=1)
    z = (torch.rand(n, classes, generator=g) < 0.25).float()
    y = torch.where(
        z > 0, torch.rand(n, classes, generator=g) < 0.7, torch.rand(n, classes, generator=g) < 0.12
    )
    x = centred(z @ centres * 3 + 0.5 * torch.randn(n, 16, generator=g))
    title = normalize(z @ meanings + 0.1 * torch.randn(n, 24, generator=g), dim=1)
    title = title * (torch.rand(n, 1, generator=g) > 0.2)
    return x, title, meanings, y.long(), z


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
    x = centred(centres[z] * 3 + torch.randn(n, 16, generator=g) * 0.8)
    text = normalize(meanings[z] + 0.2 * torch.randn(n, 12, generator=g), dim=1)
    text = text * (torch.rand(n, 1, generator=g) >= missing)
    return x, text, meanings[:classes], y, z
