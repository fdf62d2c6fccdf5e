from __future__ import annotations

import numpy as np
import pytest

from capro.report.thumbnails import embedding_map


@pytest.mark.parametrize("size", [1, 3, 12])
def test_map_of_few_or_equal_images_stays_within_the_square(size: int) -> None:
    rng = np.random.default_rng(4)
    for features in (rng.normal(size=(size, 5)), np.ones((size, 5))):
        points = embedding_map(features, seed=2**62)
        assert points.shape == (size, 2)
        assert np.isfinite(points).all()
        assert points.min() >= -1e-6
        assert points.max() <= 1 + 1e-6
