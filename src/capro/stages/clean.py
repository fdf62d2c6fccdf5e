"""The offline pass: a verdict per training sample, and the cleaned labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from capro.config import Settings
from capro.evaluate import verdicts
from capro.evaluate.neighbourhood import NEIGHBORS, neighbourhood, text_lenders
from capro.graph.neighbors import nearest
from capro.method import plus
from capro.review.decisions import Fixed, deciding_person
from capro.run.artefacts import (
    ADJACENCY,
    ANCHORS,
    CLEANED_LABELS,
    CLEANED_WORDS,
    DISTANCES,
    FUSED_SCORES,
    PICTURE_EVIDENCE,
    POSTERIOR,
    SAMPLE_VERDICTS,
    STEP2,
    TEXTS,
    VERDICTS,
    VISUAL,
    WORD_EVIDENCE,
)
from capro.run.directory import Run
from capro.run.stage import Job, Stage
from capro.stages.decided import decided_of, with_decisions
from capro.stages.graph import search_options
from capro.stages.posterior import posterior_of
from capro.stages.train import has_step2, judge_of
from capro.stages.training import Parts, parts_of
from capro.train.batches import forward_plain
from capro.train.judgement import Judged, judge_all
from capro.train.setup import TrainingSet, anchor_choice, anchored_of, load_net


def _by_rule(job: Job, parts: Parts, anchored: Tensor) -> Judged:
    """What the paper's rule makes of every training row."""
    training = parts.training
    extra = load_net(job.run, STEP2, parts.net)
    judge = judge_of(job.run, training, parts.task)
    prototypes = extra["prototypes"].to(training.labels.device)
    return judge_all(
        judge, parts.net, prototypes, training.labels, anchored, parts.inputs, training.positions
    )


@torch.no_grad()
def _by_posterior(job: Job, parts: Parts, anchored: Tensor) -> Judged:
    """What follows from the posterior: the stage's, or that of the features that step 2 has learnt."""
    run, training, settings = job.run, parts.training, job.settings
    arrays = [run.read(name) for name in (POSTERIOR, WORD_EVIDENCE, PICTURE_EVIDENCE)]
    q, words, picture = (torch.from_numpy(np.array(array)) for array in arrays)
    if has_step2(settings):
        load_net(run, STEP2, parts.net)
        encoder, device = parts.net.eval().encoder, training.labels.device
        v = forward_plain(encoder, parts.inputs, training.positions, width=encoder.dim, device=device)
        found = posterior_of(run, training, v.cpu())
        q, words, picture = found.q, found.words, found.picture
    labels, count = training.labels.cpu(), len(training.classes)
    if training.multi_label:
        decided = plus.decide_pairs(q, labels)
        parts_of_q = [part.sigmoid() for part in (picture, words)]
    else:
        decided = plus.decide(q, labels, anchored.cpu(), sure=settings.plus.ask_below)
        parts_of_q = [part.exp()[:, :count] for part in (picture, words)]
    seen, read = (part.numpy() for part in parts_of_q)
    return Judged(
        decided.labels.numpy(),
        decided.decisions.numpy(),
        q[:, :count].numpy(),
        classifier=seen,
        similarity=np.full_like(seen, np.nan),
        text=read,
        none=None if training.multi_label else q[:, count].numpy(),
        ask=decided.ask.numpy(),
    )


def _work(job: Job) -> dict[str, Any]:
    parts = parts_of(job)
    training = parts.training
    anchored = anchored_of(job.run, training)
    judged = (_by_posterior if job.settings.method == "plus" else _by_rule)(job, parts, anchored)
    fixed = decided_of(job.run, training)
    judged = with_decisions(judged, fixed, training.labels.cpu().numpy(), anchored.cpu().numpy())
    job.write(CLEANED_LABELS, judged.labels)
    job.write(FUSED_SCORES, judged.fused)
    if training.multi_label and judged.text is not None:
        job.write(CLEANED_WORDS, judged.text)
    evidence = _evidence(job, training, anchored, judged, fixed)
    if training.multi_label:  # labels as lists, beside the (sample, class) table
        job.write(SAMPLE_VERDICTS, verdicts.multi_label(evidence))
        frame = verdicts.pairs(evidence)
    else:
        job.remove(SAMPLE_VERDICTS)
        frame = verdicts.single_label(evidence)
    job.write(VERDICTS, frame)
    return {str(name): int(n) for name, n in frame["decision"].value_counts().items()}


def _evidence(
    job: Job, training: TrainingSet, anchored: Tensor, judged: Judged, fixed: Fixed | None
) -> verdicts.Evidence:
    """What the verdict tables are written from."""
    has_text = np.asarray(np.asarray(job.read(TEXTS)).any(axis=1))
    anchors = job.read(ANCHORS)
    chosen_by = np.empty(len(has_text), dtype=np.object_)  # None where it is no anchor
    chosen_by[anchors["row"].to_numpy(dtype=np.int64)] = anchor_choice(anchors)
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
        none=judged.none,
        ask=judged.ask,
        text_distance=job.read(DISTANCES)[["id", "class", "distance"]],
        pictures=neighbourhood(near),
        lenders=text_lenders(job.run.find(ADJACENCY), has_text),
        has_text=has_text,
        chosen_by=chosen_by,
        gamma=job.settings.train.gamma,
        person=None if fixed is None else fixed.pairs if training.multi_label else fixed.rows,
    )


def _settings(run: Run) -> dict[str, Any]:
    if run.settings.method == "plus":
        return {"plus": run.settings.plus.model_dump(), "seed": run.settings.seed, **deciding_person(run)}
    rule = run.settings.train.model_dump(include={"gamma", "alpha", "text_weight", "policy"})
    return {**rule, **deciding_person(run)}


def _reads(settings: Settings) -> list[str]:
    posterior = ["posterior"] if settings.method == "plus" else []
    step2 = ["train"] if has_step2(settings) else []
    return ["scan", "classes", "embed", "match", *posterior, *step2]


STAGE = Stage("clean", _work, summary="offline pass", settings=_settings, reads=_reads, keep=True)
