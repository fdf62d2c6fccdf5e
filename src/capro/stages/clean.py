"""The offline pass: a verdict per training sample, and the cleaned labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.config import Settings
from capro.evaluate import verdicts
from capro.evaluate.neighbourhood import NEIGHBORS, Neighbourhood, neighbourhood, text_lenders
from capro.graph.neighbors import nearest
from capro.method import plus
from capro.method.anchors import anchor_choice
from capro.review.decisions import Fixed, deciding_person
from capro.run.artefacts import (
    ADJACENCY,
    ANCHORS,
    CLEANED_LABELS,
    CLEANED_WORDS,
    DISTANCES,
    FUSED_SCORES,
    POSTERIOR,
    SAMPLE_VERDICTS,
    STEP2,
    TEXTS,
    VERDICTS,
    VISUAL,
    write_blocks,
)
from capro.run.directory import Run
from capro.run.kept_scores import CLASS, Entries, KeptScores, given_classes, keep
from capro.run.shards import write_rows
from capro.run.stage import Job, Stage
from capro.stages.decided import decided_of, with_decisions
from capro.stages.graph import search_options
from capro.stages.posterior import row_blocks, weigh
from capro.stages.train import has_step2, judge_of
from capro.stages.training import Parts, parts_of
from capro.train.batches import forward_plain
from capro.train.judgement import Judged, judge_all
from capro.train.setup import TrainingSet, anchored_of, load_net


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
    run, training = job.run, parts.training
    if not has_step2(job.settings):
        stored = run.read(POSTERIOR)
        return _judged(job, training, anchored, (stored[rows] for rows in row_blocks(len(stored))))
    load_net(run, STEP2, parts.net)
    encoder, device = parts.net.eval().encoder, training.labels.device
    v = forward_plain(encoder, parts.inputs, training.positions, width=encoder.dim, device=device)
    return _judged(job, training, anchored, weigh(run, training, v.cpu().numpy()).entries())


def _judged(job: Job, training: TrainingSet, anchored: Tensor, blocks: Iterable[Entries]) -> Judged:
    """Labels and decisions from kept posteriors, block by block."""
    several, count = training.multi_label, len(training.classes)
    labels, states, start = training.labels.cpu(), count if several else count + 1, 0
    found: list[tuple[NDArray[Any], ...]] = []
    for block in blocks:
        rows = slice(start, start + len(block))
        start = rows.stop
        q, words, picture = (
            torch.from_numpy(KeptScores(block, name, states, other)[:])
            for name, other in (("posterior", 0.0), ("words", -np.inf), ("picture", -np.inf))
        )
        y = labels[rows]
        if several:
            decided = plus.decide_pairs(q, y)
            seen, read = picture.sigmoid(), words.sigmoid()
        else:
            decided = plus.decide(q, y, anchored.cpu()[rows], sure=job.settings.plus.ask_below)
            seen, read = picture.exp()[:, :count], words.exp()[:, :count]
        scores = {"fused": q[:, :count], "classifier": seen, "text": read}
        own = given_classes(y.numpy(), count)
        kept = keep({name: part.numpy() for name, part in scores.items()}, own, several=several)
        none = np.zeros(0, np.float32) if several else q[:, count].numpy()
        found.append((decided.labels.numpy(), decided.decisions.numpy(), kept, none, decided.ask.numpy()))
    new, decisions, kept, none, ask = (np.concatenate(part) for part in zip(*found, strict=True))
    return Judged(new, decisions, kept, None if several else none, ask)


def _work(job: Job) -> dict[str, Any]:
    parts = parts_of(job)
    training = parts.training
    anchored = anchored_of(job.run, training)
    judged = (_by_posterior if job.settings.method == "plus" else _by_rule)(job, parts, anchored)
    fixed = decided_of(job.run, training)
    judged = with_decisions(judged, fixed, training.labels.cpu().numpy(), anchored.cpu().numpy())
    job.write(CLEANED_LABELS, judged.labels)
    job.write(FUSED_SCORES, judged.scores[[CLASS, "fused"]])
    if training.multi_label and job.settings.method == "plus":
        count = len(training.classes)
        texts = KeptScores(judged.scores, "text", count)
        blocks = (texts[part] for part in row_blocks(len(judged.labels)))
        write_rows(job.file(CLEANED_WORDS), (len(judged.labels), count), blocks)
    counts = Counter[str]()

    def counted(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            counts.update(frame["decision"])
            yield frame

    known = _known(job, training, anchored, judged, fixed)
    if training.multi_label:  # labels as lists, beside the (sample, class) table
        write_blocks(job.file(SAMPLE_VERDICTS), map(verdicts.multi_label, known.blocks()), verdicts.TYPES)
        write_blocks(job.file(VERDICTS), counted(map(verdicts.pairs, known.blocks())), verdicts.TYPES)
    else:
        job.remove(SAMPLE_VERDICTS)
        write_blocks(job.file(VERDICTS), counted(map(verdicts.single_label, known.blocks())), verdicts.TYPES)
    return dict(counts.most_common())


@dataclass(frozen=True)
class _Known:
    """What verdicts are written from, by training row; scores are made whole block by block."""

    training: TrainingSet
    ids: NDArray[np.object_]
    anchored: NDArray[np.bool_]
    judged: Judged
    distances: pd.DataFrame  # sorted by row
    pictures: Neighbourhood
    lenders: list[NDArray[np.int64]]
    has_text: NDArray[np.bool_]
    chosen_by: NDArray[np.object_]
    gamma: float
    person: NDArray[np.bool_] | None

    def blocks(self) -> Iterator[verdicts.Evidence]:
        """Of all training rows, in order."""
        return map(self._block, row_blocks(len(self.ids)))

    def _block(self, rows: slice) -> verdicts.Evidence:
        judged, near = self.judged, self.pictures
        begin, end = np.searchsorted(self.distances["row"].to_numpy(), [rows.start, rows.stop])
        return verdicts.Evidence(
            ids=self.ids[rows],
            classes=self.training.classes,
            given=self.training.labels[rows].cpu().numpy(),
            corrected=judged.labels[rows],
            decisions=judged.decisions[rows],
            anchored=self.anchored[rows],
            fused=self._scores("fused", rows),
            classifier=self._scores("classifier", rows),
            similarity=self._scores("similarity", rows),
            text=self._scores("text", rows) if "text" in (judged.scores.dtype.names or ()) else None,
            none=None if judged.none is None else judged.none[rows],
            ask=None if judged.ask is None else judged.ask[rows],
            text_distance=self.distances.iloc[begin:end][["id", "class", "distance"]],
            pictures=Neighbourhood(
                near.outlier_score[rows],
                near.is_outlier[rows],
                near.duplicate_score[rows],
                near.duplicates[rows],
            ),
            lenders=self.lenders[rows],
            has_text=self.has_text[rows],
            chosen_by=self.chosen_by[rows],
            gamma=self.gamma,
            person=None if self.person is None else self.person[rows],
            everybody=(self.ids, judged.labels),
        )

    def _scores(self, name: str, rows: slice) -> NDArray[np.float32]:
        scores, count = self.judged.scores[rows], len(self.training.classes)
        if name not in (scores.dtype.names or ()):  # no prototypes with method plus
            return np.full((len(scores), count), np.nan, np.float32)
        return KeptScores(scores, name, count)[:]


def _known(job: Job, training: TrainingSet, anchored: Tensor, judged: Judged, fixed: Fixed | None) -> _Known:
    texts = job.read(TEXTS)
    has_text = np.concatenate([texts[part].any(axis=1) for part in row_blocks(len(texts))])
    anchors = job.read(ANCHORS)
    chosen_by = np.empty(len(has_text), dtype=np.object_)  # None where it is no anchor
    chosen_by[anchors["row"].to_numpy(dtype=np.int64)] = anchor_choice(anchors)
    with job.scratch() as scratch:
        near = nearest(job.read(VISUAL), NEIGHBORS, **search_options(job, scratch))
    ids, distances = np.array(training.row_ids, dtype=object), job.read(DISTANCES)
    distances["row"] = pd.Index(ids).get_indexer(distances["id"])
    return _Known(
        training=training,
        ids=ids,
        anchored=anchored.cpu().numpy(),
        judged=judged,
        distances=distances.sort_values("row", kind="stable", ignore_index=True),
        pictures=neighbourhood(near),
        lenders=text_lenders(job.run.find(ADJACENCY), has_text),
        has_text=has_text,
        chosen_by=chosen_by,
        gamma=job.settings.train.gamma,
        person=None if fixed is None else fixed.pairs if training.multi_label else fixed.rows,
    )


def _settings(run: Run) -> dict[str, Any]:
    if run.settings.method == "plus":
        return {
            "plus": run.settings.plus.model_dump(),
            "kept": "the highest",
            "seed": run.settings.seed,
            **deciding_person(run),
        }
    rule = run.settings.train.model_dump(include={"gamma", "alpha", "text_weight", "policy"})
    return {**rule, "kept": "the highest", **deciding_person(run)}


def _reads(settings: Settings) -> list[str]:
    posterior = ["posterior"] if settings.method == "plus" else []
    step2 = ["train"] if has_step2(settings) else []
    return ["scan", "classes", "embed", "match", *posterior, *step2]


STAGE = Stage("clean", _work, summary="offline pass", settings=_settings, reads=_reads, keep=True)
