"""Pictures, texts and class names without labels."""

import numpy as np
from sklearn.linear_model import Ridge

from capro.core import plus
from tests.core.plus.cases import made_up


def test_picture_to_text_is_ridge_out_of_fold():
    x, text, *_ = made_up(90)
    fold = plus.assign_folds(90, 3, 0)
    found = plus.picture_to_text(x, [text], fold, ridge=0.01).predicted
    rest = ((fold != 1) & text.any(1)).numpy()
    t = text.numpy()
    model = Ridge(alpha=0.01 * rest.sum(), fit_intercept=False)
    model.fit(x.numpy()[rest], t[rest] - t[rest].mean(0))
    assert np.abs(found[fold == 1].numpy() - model.predict(x[fold == 1].numpy())).max() < 1e-3
