"""The two views: texts compared with classes, pictures without labels."""

import numpy as np
import torch
from hypothesis import given
from sklearn.linear_model import Ridge
from torch.nn.functional import cosine_similarity, normalize

from capro.core.evidence import ClassMeanings
from capro.core.linear import assign_folds
from capro.core.views import Centres, TextField, far_texts, picture_to_text
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
