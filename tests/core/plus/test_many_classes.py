"""One label, more classes than the fit has samples."""

import torch
from hypothesis import given
from torch.nn.functional import cosine_similarity

from capro.core import plus
from capro.core.plus.evidence import even_prior
from capro.core.plus.many_classes import among_classes, right_labels
from tests.core.plus.cases import FEW, SEEDS, distributions, generator, made_up

NO_SENSES = {"senses": torch.zeros(0, 12), "owner": torch.zeros(0, dtype=torch.int64)}


@given(SEEDS)
@FEW
def test_a_picture_is_compared_with_centres_without_itself(seed):
    g = generator(seed)
    x, y = torch.randn(12, 5, generator=g), torch.randint(-1, 4, (12,), generator=g)
    found = plus.Centres.of(x, y, 4)(x, y)
    for i in range(12):
        slow = torch.zeros(4)
        for c in range(4):
            others = [x[j] for j in range(12) if y[j] == c and j != i]
            if others:
                slow[c] = cosine_similarity(x[i], torch.stack(others).sum(0), dim=0)
        has = torch.tensor([any(y[j] == c for j in range(12) if j != i) for c in range(4)])
        slow = torch.where(has, slow - slow.mean(), 0.0)
        alone = y[i] >= 0 and not has[y[i]]
        assert torch.allclose(found[i], torch.zeros(4) if alone else slow, atol=1e-5)


@given(SEEDS)
@FEW
def test_right_labels_are_counted_over_all_classes(seed):
    q, y = distributions(30, 4, seed), torch.randint(-1, 3, (30,), generator=generator(seed))
    known = [i for i in range(30) if y[i] >= 0]
    right, some = sum(float(q[i, y[i]]) for i in known), sum(float(1 - q[i, 3]) for i in known)
    assert abs(right_labels(q, y) - (right + 12) / (some + 17)) < 1e-4
    assert abs(float(even_prior(5, 0.2).sum()) - 1) < 1e-6


@given(SEEDS)
@FEW
def test_the_words_decide_on_none_of_these(seed):
    words, picture, prior = distributions(6, 5, seed), distributions(6, 5, seed + 1), even_prior(4, 0.1)
    found = among_classes(words.log(), picture.log(), prior, by=plus.pool)
    assert torch.allclose(found[:, -1], words[:, -1], atol=1e-5)
    for row, (w, p) in enumerate(zip(words, picture, strict=True)):
        both = [float(w[c] * p[c]) for c in range(4)]
        slow = [(1 - float(w[4])) * each / sum(both) for each in both]
        assert torch.allclose(found[row, :4], torch.tensor(slow), atol=1e-4)


def test_classes_that_the_fit_never_saw_are_judged_like_the_others():
    classes = 300
    x, text, meanings, y, z = made_up(3000, classes, seed=3, noise=0.2)
    fit, rest = torch.arange(3000) < 200, torch.arange(3000) >= 200
    found = plus.many_classes(
        x[fit], [text[fit]], meanings, y[fit], centres=plus.Centres.of(x, y, classes), **NO_SENSES
    )
    judged = found.of(x[rest], [text[rest]], y[rest]).q.argmax(1)
    unseen = ~torch.isin(z[rest], z[fit])
    assert unseen.sum() > 900
    before = (y == z)[rest]
    assert (judged == z[rest])[unseen].float().mean() > before[unseen].float().mean() + 0.05
    # with weights of their own the unseen classes are lost
    own = plus.single_label(x[fit], [text[fit]], meanings, y[fit]).of(x[rest], [text[rest]], y[rest])
    assert (own.q.argmax(1) == z[rest])[unseen].float().mean() < before[unseen].float().mean()


def test_beliefs_are_probabilities_and_a_persons_word_stands():
    x, text, meanings, y, _ = made_up(80, 40, seed=5)
    known = torch.full((80, 41), torch.nan)
    known[3] = torch.nn.functional.one_hot(torch.tensor(7), 41)
    found = plus.many_classes(
        x, [text], meanings, y, centres=plus.Centres.of(x, y, 40), known=known, **NO_SENSES
    )
    assert torch.allclose(found.q.sum(1), torch.ones(80), atol=1e-4)
    assert int(found.q[3].argmax()) == 7
