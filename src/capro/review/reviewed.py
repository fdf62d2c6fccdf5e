"""How many labels of a run are right, from what a person said of its random part."""

from __future__ import annotations

from typing import Any

from capro.data.manifest import manifest_of
from capro.pipeline.checksums import seed_for
from capro.pipeline.run import Run
from capro.review.log import replayed
from capro.review.progress import findings
from capro.review.queue import random_order


def review_seed(run: Run) -> int:
    """Of the random part of the questions: the same in every session of a run."""
    return seed_for(run.settings.seed, "review")


def reviewed(run: Run) -> dict[str, Any] | None:
    """The estimate of the random part, and the agreement of all answers; None without a review."""
    said = replayed(run).decided()
    if not said:
        return None
    manifest = manifest_of(run)
    ids = manifest.samples["id"].to_numpy()[manifest.split("train")]
    drawn = ids[random_order(len(ids), review_seed(run))].tolist()
    return findings(said, drawn)
