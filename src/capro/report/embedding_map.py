"""Pictures in two dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PERPLEXITY = 30.0
ANGLE, ITERATIONS = 0.8, 500  # quicker than scikit-learn's 0.5 and 1,000


def embedding_map(features: NDArray[np.floating[Any]], seed: int) -> NDArray[np.float32]:
    """Two dimensions by t-SNE, scaled to 0 ... 1, (n, 2); O(n log n), some seconds for 3,000."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    x = np.asarray(features, dtype=np.float32)
    n = len(x)
    if n < 4 or not np.ptp(x, axis=0).any():  # too few, or all the same: a circle
        angle = np.linspace(0, 2 * np.pi, max(n, 1), endpoint=False)[:n]
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) / 2 + 0.5
        return circle.astype(np.float32)
    width = min(50, n - 1, x.shape[1])
    x = PCA(width, random_state=seed % 2**32, svd_solver="randomized").fit_transform(x)
    found = TSNE(
        2, init="pca" if width >= 2 else "random", random_state=seed % 2**32,
        perplexity=min(PERPLEXITY, (n - 1) / 3), angle=ANGLE, max_iter=ITERATIONS,
    ).fit_transform(x)  # fmt: skip
    low, high = found.min(axis=0), found.max(axis=0)
    scaled: NDArray[np.float32] = ((found - low) / np.maximum(high - low, 1e-9)).astype(np.float32)
    return scaled
