"""The offline pass: a verdict per training sample, and the corrected labels; what a person decided stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.core import plus
from capro.core.anchors import anchor_choice
from capro.core.kept_scores import CLASS, Entries, KeptScores, keep
from capro.data.labels import kind_of
from capro.graph.neighbors import nearest
from capro.pipeline.artefacts import (
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
    write_verdicts,
)
from capro.pipeline.engine import Portable
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.pipeline.shards import ALONE, write_rows
from capro.pipeline.stage import Job
from capro.results import verdicts
from capro.results.neighbourhood import NEIGHBORS, Neighbourhood, neighbourhood, text_lenders
from capro.review.decisions import Fixed
from capro.stages.decided import decided_of, with_decisions
from capro.stages.graph import SharedSearch, search_options
from capro.stages.plan import has_step2
from capro.stages.posterior import row_blocks, weigh
from capro.stages.training import Parts, judge_of, parts_of
from capro.train.batches import forward_plain
from capro.train.judgement import Judge, Judged, judge_all
from capro.train.setup import TrainingSet, anchored_of, load_net

Block = tuple[dict[str, Any], Entries]  # fields of `verdicts.Evidence` but its scores, which are kept ones


@dataclass(frozen=True)
class Known:
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

    def blocks(self) -> Iterator[Block]:
        """Of all training rows, in order."""
        return map(self._block, row_blocks(len(self.ids), len(self.training.classes)))

    def _block(self, rows: slice) -> Block:
        judged, near = self.judged, self.pictures
        begin, end = np.searchsorted(self.distances["row"].to_numpy(), [rows.start, rows.stop])
        named, (duplicates, lenders) = _renumbered(near.duplicates[rows], self.lenders[rows])
        found = {
            "ids": self.ids[rows],
            "classes": self.training.classes,
            "given": self.training.labels[rows].cpu().numpy(),
            "corrected": judged.labels[rows],
            "decisions": judged.decisions[rows],
            "anchored": self.anchored[rows],
            "none": None if judged.none is None else judged.none[rows],
            "ask": None if judged.ask is None else judged.ask[rows],
            "text_distance": self.distances.iloc[begin:end][["id", "class", "distance"]],
            "pictures": Neighbourhood(
                near.outlier_score[rows], near.is_outlier[rows], near.duplicate_score[rows], duplicates
            ),
            "lenders": lenders,
            "has_text": self.has_text[rows],
            "chosen_by": self.chosen_by[rows],
            "gamma": self.gamma,
            "person": None if self.person is None else self.person[rows],
            "everybody": (self.ids[named], judged.labels[named]),
        }
        return found, judged.scores[rows]


def frame_of(make: Callable[[verdicts.Evidence], pd.DataFrame], block: Block) -> pd.DataFrame:
    """Verdicts of a block of rows, whose scores are made whole here."""
    found, kept = block
    names, count = kept.dtype.names or (), len(found["classes"])

    def scores(name: str) -> NDArray[np.float32]:
        if name not in names:  # no prototypes with method plus
            return np.full((len(kept), count), np.nan, np.float32)
        return KeptScores(kept, name, count)[:]

    return make(
        verdicts.Evidence(
            fused=scores("fused"),
            classifier=scores("classifier"),
            similarity=scores("similarity"),
            text=scores("text") if "text" in names else None,
            **found,
        )
    )


Lists = list[NDArray[np.int64]]


def _renumbered(*lists: Lists) -> tuple[NDArray[np.int64], list[Lists]]:
    """The rows that lists name, ascending, and the lists with places in it: a block needs no other rows.

    >>> rows, (first, second) = _renumbered([np.array([7, 3])], [np.array([9])])
    >>> rows.tolist(), first[0].tolist(), second[0].tolist()
    ([3, 7, 9], [1, 0], [2])
    """
    flat = [np.concatenate([np.zeros(0, np.int64), *each]) for each in lists]
    named = np.unique(np.concatenate(flat))
    places = [
        np.split(np.searchsorted(named, rows), np.cumsum([len(row) for row in each])[:-1])
        for rows, each in zip(flat, lists, strict=True)
    ]
    return named, places


@dataclass(frozen=True)
class _Rule(Portable):
    """The paper's rule on training rows; networks are loaded once in each process."""

    run: Run

    @cached_property
    def parts(self) -> Parts:
        """Training rows, networks and their input."""
        return parts_of(self.run, ranks_of(self.run.settings).accelerator.device)

    @cached_property
    def _judging(self) -> tuple[Judge, Tensor, Tensor]:
        """The rule, the prototypes and who is an anchor, after step 2."""
        training = self.parts.training
        prototypes = load_net(self.run, STEP2, self.parts.net)["prototypes"].to(training.labels.device)
        return judge_of(self.run, training, self.parts.task), prototypes, anchored_of(self.run, training)

    def __call__(self, rows: slice) -> Judged:
        parts, (judge, prototypes, anchored) = self.parts, self._judging
        labels, positions = parts.training.labels, parts.training.positions
        name = parts.training.id_of
        return judge_all(
            judge, parts.net, prototypes, labels, anchored, parts.inputs, positions, rows, name=name
        )


def _by_rule(job: Job, rule: _Rule) -> Judged:
    """What the paper's rule makes of every training row."""
    n = len(rule.parts.training.positions)
    blocks = row_blocks(n, len(rule.parts.training.classes))
    found = job.engine.map(rule, blocks, gpu=True)
    return Judged(*_filled(n, ((each.labels, each.decisions, each.scores) for each in found)))


@torch.no_grad()
def _by_posterior(job: Job, parts: Parts, anchored: Tensor) -> Judged:
    """What follows from the posterior: the stage's, or that of the features that step 2 has learnt."""
    run, training = job.run, parts.training
    if not has_step2(job.settings):
        stored = run.read(POSTERIOR)
        blocks = row_blocks(len(stored), len(training.classes))
        return _judged(job, training, anchored, (stored[rows] for rows in blocks))
    load_net(run, STEP2, parts.net)
    encoder, device = parts.net.eval().encoder, training.labels.device
    v = forward_plain(encoder, parts.inputs, training.positions, width=encoder.dim, device=device)
    return _judged(job, training, anchored, weigh(run, training, v.cpu().numpy()).entries())


def _judged(job: Job, training: TrainingSet, anchored: Tensor, blocks: Iterable[Entries]) -> Judged:
    """Labels and decisions from kept posteriors, block by block."""
    several, count = training.multi_label, len(training.classes)
    labels, anchors = training.labels.cpu().numpy(), anchored.cpu().numpy()

    def parts() -> Iterator[_Part]:
        start = 0
        for block in blocks:
            rows = slice(start, start + len(block))
            yield np.asarray(block), labels[rows], anchors[rows]
            start = rows.stop

    decide = partial(_decide, several=several, count=count, sure=job.settings.plus.ask_below)
    new, decisions, kept, none, ask = _filled(len(labels), job.engine.map(decide, parts()))
    return Judged(new, decisions, kept, None if several else none, ask)


def _filled(n: int, blocks: Iterable[tuple[NDArray[Any], ...]]) -> list[NDArray[Any]]:
    """Arrays of n rows from blocks of their rows.

    They are made once and filled: blocks that are kept until the end would lie in memory between the large arrays of
    later ones, and none of these could be given back.
    """
    found: list[NDArray[Any]] = []
    start = 0
    for block in blocks:
        found = found or [np.empty((n, *part.shape[1:]), part.dtype) for part in block]
        for whole, part in zip(found, block, strict=True):
            whole[start : start + len(part)] = part
        start += len(block[0])
    return found


_Part = tuple[
    Entries, NDArray[np.int64], NDArray[np.bool_]
]  # posteriors, web labels and anchors of some rows


def _decide(part: _Part, *, several: bool, count: int, sure: float) -> tuple[NDArray[Any], ...]:
    """Labels, decisions, scores, posteriors of none of these, and what to ask, of some rows."""
    block, given, anchored = part
    y, states = torch.from_numpy(given), count if several else count + 1
    q, words, picture = (
        torch.from_numpy(KeptScores(block, name, states, other)[:])
        for name, other in (("posterior", 0.0), ("words", -np.inf), ("picture", -np.inf))
    )
    if several:
        decided = plus.decide_pairs(q, y)
        seen, read = picture.sigmoid(), words.sigmoid()
    else:
        decided = plus.decide(q, y, torch.from_numpy(anchored), sure=sure)
        seen, read = picture.exp()[:, :count], words.exp()[:, :count]
    scores = {"fused": q[:, :count], "classifier": seen, "text": read}
    own = kind_of(given).membership(given, count)
    kept = keep({name: each.numpy() for name, each in scores.items()}, own, multi_label=several)
    none = np.zeros(0, np.float32) if several else q[:, count].clone().numpy()  # a view would keep all of q
    return decided.labels.numpy(), decided.decisions.numpy(), kept, none, decided.ask.numpy()


def work(job: Job) -> dict[str, Any]:
    rule = _Rule(job.run)
    training = rule.parts.training
    anchored = anchored_of(job.run, training)
    by_posterior = job.settings.method == "plus"
    judged = _by_posterior(job, rule.parts, anchored) if by_posterior else _by_rule(job, rule)
    fixed = decided_of(job.run, training)
    judged = with_decisions(judged, fixed, training.labels.cpu().numpy(), anchored.cpu().numpy())
    job.write(CLEANED_LABELS, judged.labels)
    job.write(FUSED_SCORES, judged.scores[[CLASS, "fused"]])
    if training.multi_label and job.settings.method == "plus":
        count = len(training.classes)
        texts = KeptScores(judged.scores, "text", count)
        blocks = (texts[part] for part in row_blocks(len(judged.labels), count))
        write_rows(job.file(CLEANED_WORDS), (len(judged.labels), count), blocks)
    counts = Counter[str]()

    def counted(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            counts.update(frame["decision"])
            yield frame

    with job.bar("neighbours of pictures", None):
        known = _known(job, training, anchored, judged, fixed)
    with job.bar("verdicts", len(known.ids) * (2 if training.multi_label else 1)) as step:

        def frames(make: Callable[[verdicts.Evidence], pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for rows, frame in zip(
                row_blocks(len(known.ids), len(training.classes)),
                job.engine.map(partial(frame_of, make), known.blocks()),
                strict=True,
            ):
                yield frame
                step(rows.stop - rows.start)

        if training.multi_label:  # labels as lists, beside the (sample, class) table
            write_verdicts(job.file(SAMPLE_VERDICTS), frames(verdicts.multi_label), verdicts.TYPES)
            write_verdicts(job.file(VERDICTS), counted(frames(verdicts.pairs)), verdicts.TYPES)
        else:
            job.remove(SAMPLE_VERDICTS)
            write_verdicts(job.file(VERDICTS), counted(frames(verdicts.single_label)), verdicts.TYPES)
    return dict(counts.most_common())


def _known(job: Job, training: TrainingSet, anchored: Tensor, judged: Judged, fixed: Fixed | None) -> Known:
    texts = job.read(TEXTS)
    has_text = np.concatenate([texts[part].any(axis=1) for part in row_blocks(len(texts))])
    anchors = job.read(ANCHORS)
    chosen_by = np.empty(len(has_text), dtype=np.object_)  # None where it is no anchor
    chosen_by[anchors["row"].to_numpy(dtype=np.int64)] = anchor_choice(anchors)
    with job.scratch() as scratch, job.scratch("search") as search:
        options = search_options(job, scratch)
        if job.engine.remote:
            options["through"] = SharedSearch(ALONE, search, job.key, job.engine, options["budget"])
        near = nearest(job.read(VISUAL), NEIGHBORS, **options)
    ids, distances = np.array(training.row_ids, dtype=object), job.read(DISTANCES)
    distances["row"] = pd.Index(ids).get_indexer(distances["id"])
    return Known(
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
