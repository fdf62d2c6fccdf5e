"""The two views: texts compared with classes, pictures without labels."""

import numpy as np
import torch
from hypothesis import given
from sklearn.linear_model import Ridge
from torch.nn.functional import cosine_similarity, normalize

from capro.core.evidence import ClassMeanings
from capro.core.linear import assign_folds
from capro.core.views import (
    Centres,
    TextField,
    doubtful_pictures,
    far_texts,
    named_other_things,
    picture_to_text,
    unknown_to_head,
)
from tests.core.cases import FEW, SEEDS, generator, made_up


def test_far_texts_is_far_or_of_another_sense():
    classes, senses = torch.eye(4)[:2], torch.eye(4)[2:3]
    near = normalize(torch.tensor([[1.0, 0.1, 0, 0]]), dim=1).repeat(38, 1)
    t = torch.cat([near, torch.eye(4)[2:3], torch.eye(4)[3:4], torch.zeros(1, 4)])
    word = torch.zeros(41, dtype=torch.int64)
    field = TextField.of(t, ClassMeanings(classes, senses=senses, owner=torch.tensor([0])), word)
    found = far_texts(field, share=0.05)
    assert found.nonzero()[:, 0].tolist() == [38, 39]  # not the missing text


def test_picture_to_text_is_ridge_out_of_fold():
    x, text, *_ = made_up(90)
    fold = assign_folds(90, 3, 0)
    found = picture_to_text(x, [text], fold, ridge=0.01).predicted
    rest = ((fold != 1) & text.any(1)).numpy()
    t = text.numpy()
    model = Ridge(alpha=0.01 * rest.sum(), fit_intercept=False)
    model.fit(x.numpy()[rest], t[rest] - t[rest].mean(0))
    assert np.abs(found[fold == 1].numpy() - model.predict(x[fold == 1].numpy())).max() < 1e-3


@given(SEEDS)
@FEW
def test_a_picture_is_compared_with_centres_without_itself(seed):
    g = generator(seed)
    x, y = torch.randn(12, 5, generator=g), torch.randint(-1, 4, (12,), generator=g)
    found = Centres.of(x, y, 4).cosines(x, y)
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


# --- who starts as none of these


def test_other_things_are_named_where_somebody_says_so_and_nobody_names_a_class():
    answers = [torch.tensor([3, 3, -1, 1, -1]), torch.tensor([-1, 2, 3, 3, -1])]
    assert named_other_things(answers, 3).tolist() == [True, False, True, False, False]
    assert bool(named_other_things([], 3))  # without annotators the texts alone decide


def test_pictures_that_no_class_knows_are_doubtful():
    x, _, _, y, _ = made_up(300, noise=0.0)
    strange = torch.arange(300) % 30 == 0
    x[strange] = 0.1 * x[strange]  # between all classes
    fold = assign_folds(300, 3, 0)
    found = doubtful_pictures(x, y, 4, fold)
    assert found.sum() <= 30
    assert found[strange].float().mean() > 0.6
    assert found[~strange].float().mean() < 0.1
    unlabelled = torch.where(strange, -1, y)
    assert not doubtful_pictures(x, unlabelled, 4, fold)[strange].any()
    assert not doubtful_pictures(x, torch.full_like(y, -1), 4, fold).any()


def slow_unknown(mass, rival, y):
    n = len(mass)
    sees = [float(mass[i].sum()) >= 0.3 for i in range(n)]
    right = [sees[i] and int(y[i]) >= 0 and int(mass[i].argmax()) == int(y[i]) for i in range(n)]
    out = []
    trusted = sum(right) > sum(s and int(c) >= 0 for s, c in zip(sees, y, strict=True)) / 2
    for i in range(n):
        c = int(y[i])
        if c < 0:
            out.append(False)
            continue
        mine = [j for j in range(n) if int(y[j]) == c]
        own, other = float(mass[i, c]), float(rival[i, c])
        below = sorted(float(mass[j, c]) for j in mine)[(len(mine) - 1) // 2]
        known = trusted and sum(right[j] for j in mine) >= 0.1 * len(mine)
        rivalled = other > 0.2 and other > own
        out.append(rivalled or (known and not sees[i] and own < 0.1 and own <= below))
    return out


@given(SEEDS)
@FEW
def test_unknown_to_the_head_against_a_loop(seed):
    g = generator(seed)
    y = torch.randint(-1, 3, (40,), generator=g)
    mass = torch.rand(40, 3, generator=g) ** 6
    rows = (y >= 0).nonzero()[:, 0]
    mass[rows, y[rows]] += (torch.rand(len(rows), generator=g) < 0.6) * 0.5
    rival = torch.rand(40, 3, generator=g) ** 3
    assert unknown_to_head(mass, rival, y).tolist() == slow_unknown(mass, rival, y)


def test_a_head_that_does_not_know_the_classes_says_nothing():
    y = torch.arange(40) % 2
    mass = torch.zeros(40, 2)
    mass[:20, 0] = 0.9  # sees the first class everywhere: right for half of them, not for most
    assert not unknown_to_head(mass, torch.zeros(40, 2), y).any()
