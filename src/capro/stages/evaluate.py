"""`capro evaluate`: vanilla and CAPro on the test samples; other data, the open set and ground truth if given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from capro.config import Settings
from capro.data.labels import known_labels
from capro.data.manifest import manifest_of
from capro.errors import DataError
from capro.models.classes import classes_of
from capro.pipeline.artefacts import DETAILS, MODELS, SCORES
from capro.pipeline.plan import Agree
from capro.pipeline.progress import SILENT, Watch
from capro.pipeline.run import Run
from capro.pipeline.stage import Job
from capro.results import metrics, open_set
from capro.results.comparison import Evaluated, jsonable, test_split
from capro.results.truth import on_truth
from capro.review.progress import reviewed
from capro.stages import PLAN
from capro.stages.other_data import details_of, score_other
from capro.stages.threshold import threshold
from capro.stores import AnyPath
from capro.train.setup import scores_of, training_set


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


def evaluate(
    run: Run,
    *,
    on: str | None = None,
    reading: Settings | None = None,
    truth: AnyPath | None = None,
    with_open_set: bool = False,
    novel: Path | None = None,
    watch: Watch = SILENT,
    agree: Agree | None = None,
) -> dict[str, Any]:
    """Everything that `capro evaluate` prints, as plain data; also kept as a file.

    Args:
        run: The run; stages that are missing or out of date are done first.
        on: Another source to evaluate on; the run's test split if unset.
        reading: Settings by which that source is read; the run's if unset.
        truth: Table with true labels of the training samples.
        with_open_set: Add open-set recognition: samples of no known class are the open class.
        novel: Class list; only these names may be open.
        watch: Where progress is shown.
        agree: Asked before long work, or what a person decided, is replaced; nobody is asked if unset.
    """
    PLAN.refresh(run, "evaluate", watch=watch, agree=agree)
    manifest = manifest_of(run)
    if with_open_set and manifest.task == "multi":
        raise DataError(
            "open-set recognition is measured with one label per sample, and this run has several",
            hint="leave --open-set out; `capro predict --open-set` works with several labels too",
        )
    details: dict[str, Any]
    person = reviewed(run)
    if on is None and (truth is not None or person is not None) and not len(manifest.split("test")):
        details = {"on": "no test split", "samples": 0, "open": 0}  # the truth can still be used
    else:
        scored = test_split(run) if on is None else score_other(run, on, watch, reading=reading)
        if scored is None:
            raise DataError(
                f"{run.place}: the data have no test split",
                hint="give another source with --on, or scan with --test",
            )
        details = _measured(run, scored, on=on, with_open_set=with_open_set)
        if with_open_set:
            details["open_set"] = _open_set(run, scored, novel, watch)
    if truth is not None:
        details["truth"] = on_truth(run, truth)
    if person is not None:
        details["reviewed"] = person
    plain: dict[str, Any] = jsonable(details)
    artefact = DETAILS if on is None else details_of(on)
    run.write_sealed(artefact, plain)
    return plain


def _measured(run: Run, scored: Evaluated, *, on: str | None, with_open_set: bool) -> dict[str, Any]:
    """Figures of the samples of known classes; open ones are refused where nobody asked for them."""
    is_open = scored.is_open
    if is_open.any() and not with_open_set and on is not None:
        name = scored.names[int(np.flatnonzero(is_open)[0])]
        raise DataError(
            f"{on}: {int(is_open.sum())} samples have labels that are not a class of the run, "
            f"for example '{name}'",
            hint="add --open-set to count them as the open class, or correct the labels",
        )
    details = {
        "on": scored.name,
        "samples": len(scored.labels),
        "task": "multi" if scored.labels.ndim == 2 else "single",
        "open": int(is_open.sum()),
    }
    return details | (scored.compare(classes_of(run)) if not is_open.all() else {})


def _open_set(run: Run, scored: Evaluated, novel: Path | None, watch: Watch) -> dict[str, Any]:
    classes = [spec.name for spec in classes_of(run)]
    others = sorted({scored.names[row] for row in np.flatnonzero(scored.is_open)})
    if not others:
        raise DataError(
            f"{scored.name}: every sample is of a known class, so there is no open class",
            hint="give data with other classes: --on DATA --open-set",
        )
    if novel is not None:
        listed = open_set.read_class_list(novel, [*others, *classes])
        extra = sorted(set(others) - set(listed))
        if extra:
            raise DataError(
                f"{scored.name}: label '{extra[0]}' is neither a class of the run nor in {novel}",
                hint="add it to the list of novel classes",
            )
    details: dict[str, Any] = {"known": len(classes), "novel": others, "methods": {}, "held_out": {}}
    for name, scores in scored.scores.items():
        chosen = threshold(run, name, watch=watch)
        details["held_out"][name] = chosen
        curve = open_set.curve(scores, scored.labels)
        details["methods"][name] = curve.as_dict(chosen["threshold"])
    return details
