"""Vanilla and CAPro on exactly the test samples."""

from __future__ import annotations

from typing import Any

from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.evaluate import metrics
from capro.evaluate.scoring import scores_of
from capro.run.artefacts import MODELS, SCORES
from capro.run.stage import Job
from capro.train.setup import training_set


def work(job: Job) -> dict[str, Any]:
    manifest = manifest_of(job.run)
    test = manifest.split("test")
    if not len(test):
        return {}
    training = training_set(job.run)
    y = known_labels(manifest, test, training.classes)
    results = {}
    for name, model in MODELS.items():
        scores = scores_of(job.run, training, model, test)
        job.write(SCORES[name], scores)
        results[name] = metrics.headline(scores, y)
    return results
