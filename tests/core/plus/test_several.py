"""Several labels: the posterior on made-up tags."""

import pytest
import torch
from torch.nn.functional import normalize

from capro.core import plus
from tests.core.plus.cases import generator


def tagged(n=500, classes=4, seed=0):
    """Several things in a picture; a tag is wrong or missing; the title names what is shown."""
    g = generator(seed)
    centres = normalize(torch.randn(classes, 16, generator=g), dim=1)
    meanings = normalize(torch.randn(classes, 24, generator=g), dim=1)
    z = (torch.rand(n, classes, generator=g) < 0.25).float()
    y = torch.where(
        z > 0, torch.rand(n, classes, generator=g) < 0.7, torch.rand(n, classes, generator=g) < 0.12
    )
    x = plus.centred(z @ centres * 3 + 0.5 * torch.randn(n, 16, generator=g))
    title = normalize(z @ meanings + 0.1 * torch.randn(n, 24, generator=g), dim=1)
    title = title * (torch.rand(n, 1, generator=g) > 0.2)
    return x, title, meanings, y.long(), z


def test_tags_are_mended():
    x, title, classes, y, z = tagged()
    found = plus.several_labels(x, [title], classes, y)
    label = plus.decide_pairs(found.q, y).labels
    assert (label == z).float().mean() > (y == z).float().mean() + 0.05
    hit, false = found.reliability
    assert hit.mean() == pytest.approx(0.7, abs=0.1)
    assert false.mean() == pytest.approx(0.12, abs=0.06)


def test_a_field_that_repeats_the_tags_gets_less_weight():
    x, title, classes, y, _ = tagged()
    album = normalize(y.float() @ classes, dim=1)
    found = plus.several_labels(x, [title, album], classes, y)
    assert found.field_weights[0, 0] > 2 * found.field_weights[1, 0].abs()


@pytest.mark.parametrize("case", ["no text", "empty class", "full class", "duplicates", "names"])
def test_odd_tags(case):
    x, title, classes, y, _ = tagged(90)
    texts = [] if case == "no text" else [title]
    if case == "empty class":
        y[:, 0] = 0
    if case == "full class":
        y[:, 0] = 1
    if case == "duplicates":
        x, texts, y = x[:1].repeat(90, 1), [title[:1].repeat(90, 1)], y[:1].repeat(90, 1)
    names = classes if case == "names" else None
    found = plus.several_labels(x, texts, classes, y, class_names=names)
    assert found.q.isfinite().all()
    assert ((found.q >= 0) & (found.q <= 1)).all()


def test_samples_outside_of_the_fit_are_judged_nearly_as_well():
    x, title, classes, y, z = tagged(900)
    found = plus.several_labels(x[:600], [title[:600]], classes, y[:600])
    unseen = found.of(x[600:], [title[600:]], y[600:])
    inside, outside = (
        ((found.q > 0.5) == z[:600]).float().mean(),
        ((unseen.q > 0.5) == z[600:]).float().mean(),
    )
    assert outside > inside - 0.02
    assert outside > (y[600:] == z[600:]).float().mean() + 0.04
    again = found.of(x[:600], [title[:600]], y[:600])
    assert torch.allclose(again.words, found.words, atol=1e-4)
