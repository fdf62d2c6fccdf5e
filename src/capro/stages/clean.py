"""The offline pass: a verdict per training sample, and the cleaned labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from capro.evaluate import verdicts
from capro.evaluate.neighbourhood import NEIGHBORS, neighbourhood, text_lenders
from capro.graph.neighbors import nearest
from capro.run.artefacts import (
    ADJACENCY,
    CLEANED_LABELS,
    DISTANCES,
    FUSED_SCORES,
    SAMPLE_VERDICTS,
    STEP2,
    VERDICTS,
    VISUAL,
)
from capro.run.directory import Run
from capro.run.stage import Job, Stage
from capro.stages.graph import search_options
from capro.stages.train import judge_of
from capro.stages.training import parts_of
from capro.train.judgement import Judged, judge_all
from capro.train.setup import TrainingSet, anchored_of, load_net


def _work(job: Job) -> dict[str, Any]:
    parts = parts_of(job)
    training = parts.training
    anchored = anchored_of(job.run, training)
    extra = load_net(job.run, STEP2, parts.net)
    judge = judge_of(job.run, training, parts.task)
    prototypes = extra["prototypes"].to(training.labels.device)
    judged = judge_all(
        judge, parts.net, prototypes, training.labels, anchored, parts.inputs, training.positions
    )
    job.write(CLEANED_LABELS, judged.labels)
    job.write(FUSED_SCORES, judged.fused)
    evidence = _evidence(job, training, anchored, judged)
    if training.multi_label:  # labels as lists, beside the (sample, class) table
        job.write(SAMPLE_VERDICTS, verdicts.multi_label(evidence))
        frame = verdicts.pairs(evidence)
    else:
        job.remove(SAMPLE_VERDICTS)
        frame = verdicts.single_label(evidence)
    job.write(VERDICTS, frame)
    return {str(name): int(n) for name, n in frame["decision"].value_counts().items()}


def _evidence(job: Job, training: TrainingSet, anchored: Tensor, judged: Judged) -> verdicts.Evidence:
    """What the verdict tables are written from."""
    with job.scratch() as scratch:
        near = nearest(job.read(VISUAL), NEIGHBORS, **search_options(job, scratch))
    return verdicts.Evidence(
        ids=np.array(training.row_ids, dtype=object),
        classes=training.classes,
        given=training.labels.cpu().numpy(),
        corrected=judged.labels,
        decisions=judged.decisions,
        anchored=anchored.cpu().numpy(),
        fused=judged.fused,
        classifier=judged.classifier,
        similarity=judged.similarity,
        text=judged.text,
        text_distance=job.read(DISTANCES)[["id", "class", "distance"]],
        pictures=neighbourhood(near),
        lenders=text_lenders(job.run.find(ADJACENCY), len(training.positions)),
        gamma=job.settings.train.gamma,
    )


def _settings(run: Run) -> dict[str, Any]:
    return run.settings.train.model_dump(include={"gamma", "alpha", "text_weight", "policy"})


STAGE = Stage(
    "clean",
    _work,
    summary="offline pass",
    settings=_settings,
    reads=["scan", "classes", "embed", "match", "train"],
)
