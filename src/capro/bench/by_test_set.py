"""Figures by test set: the source's own test split, and a second one where ``data.test`` names it.

Both are one split of the manifest, so that every stage scores them at once; here they are told apart by the source
of their rows. A metric of the second one is called ``top1 on FOLDER/NAME``.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from capro.bench.summary import ON
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.data.readers import find
from capro.errors import DataError
from capro.pipeline.artefacts import SCORES, TEST_SCORES
from capro.pipeline.run import Run
from capro.results import metrics
from capro.train.setup import training_set

Rows = NDArray[np.int64]


def rows_by_test_set(run: Run) -> dict[str, Rows]:
    """Rows of the test split by what stands behind a metric's name: nothing, or `` on FOLDER/NAME``.

    A single test set has plain names, wherever it is from.
    """
    data, manifest = run.settings.data, manifest_of(run)
    test = manifest.split("test")
    if data.source is None or data.test is None:
        return {"": np.arange(len(test))}
    first = len(find(data, source=data.source))  # sources of data.test come after these (stages/scan.py)
    added = manifest.samples["source"].to_numpy()[test] >= first
    if added.all() or not added.any():
        return {"": np.arange(len(test))}
    name = "/".join(PurePosixPath(data.test.removeprefix("hub:")).parts[-2:])
    return {"": np.flatnonzero(~added), ON + name: np.flatnonzero(added)}


def figures_by_test_set(run: Run, baseline: str | None) -> dict[str, float]:
    """Figures of a finished row, of its own test split first.

    Args:
        run: Of the row.
        baseline: Its name; None for the pipeline.
    """
    manifest, training = manifest_of(run), training_set(run)
    kept = SCORES["capro"] if baseline is None else TEST_SCORES.of(f"baselines/{baseline}")
    scores = np.array(run.read(kept))
    y = known_labels(manifest, manifest.split("test"), training.classes)
    found: dict[str, float] = {}
    for name, rows in rows_by_test_set(run).items():
        if y.ndim == 1 and (y[rows] < 0).all():
            raise DataError(
                f"no test sample{name} has a class of the training data", hint="check the labels of data.test"
            )
        found |= {
            f"{metric}{name}": value for metric, value in metrics.headline(scores[rows], y[rows]).items()
        }
    return found
