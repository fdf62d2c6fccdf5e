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

from capro.core.anchors import anchor_choice
from capro.core.kept_scores import CLASS, Entries, KeptScores, keep
from capro.core.label_rule import decide, decide_multi_label
from capro.data.labels import kind_of
from capro.data.manifest import manifest_of
from capro.graph.neighbors import nearest
from capro.models.classes import classes_of
from capro.pipeline.artefacts import (
    ADJACENCY,
    ANCHORS,
    CLEANED_LABELS,
    DISTANCES,
    FUSED_SCORES,
    NAMED,
    POSTERIOR,
    SAMPLE_VERDICTS,
    SOFT_LABELS,
    STEP2,
    TEXTS,
    VERDICTS,
    VISUAL,
    write_verdicts,
)
from capro.pipeline.engine import Portable
from capro.pipeline.ranks import ranks_of
from capro.pipeline.run import Run
from capro.pipeline.shards import write_rows
from capro.pipeline.stage import Job
from capro.results import verdicts
from capro.results.neighbourhood import NEIGHBORS, neighbourhood, text_lenders
from capro.results.verdicts import VerdictRows
from capro.review.decisions import DecisionArrays
from capro.stages.decided import decided_of, with_decisions
from capro.stages.embed import class_nouns
from capro.stages.graph import SharedSearch, search_options
from capro.stages.posterior import fit_posterior, row_blocks
from capro.stages.training import Parts, judge_of, parts_of
from capro.train.batches import forward_plain
from capro.train.judgement import Judge, Judged, judge_all
from capro.train.setup import TrainingSet, anchored_of, load_net


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
    return _joined(n, job.engine.map(rule, row_blocks(n, len(rule.parts.training.classes)), gpu=True))


@torch.no_grad()
def _by_posterior(job: Job, parts: Parts, anchored: Tensor) -> Judged:
    """What follows from the posterior: the stage's, or that of the features that step 2 has learnt."""
    run, training = job.run, parts.training
    if not job.settings.has_step2:
        stored = run.read(POSTERIOR)
        blocks = row_blocks(len(stored), len(training.classes))
        return _judged(job, training, anchored, (stored[rows] for rows in blocks))
    load_net(run, STEP2, parts.net)
    encoder, device = parts.net.eval().encoder, training.labels.device
    v = forward_plain(encoder, parts.inputs, training.positions, width=encoder.dim, device=device)
    return _judged(job, training, anchored, fit_posterior(run, training, v.cpu().numpy()).entries())


def _judged(job: Job, training: TrainingSet, anchored: Tensor, blocks: Iterable[Entries]) -> Judged:
    """Labels and decisions from kept posteriors, block by block."""
    labels, anchors = training.labels.cpu().numpy(), anchored.cpu().numpy()

    def parts() -> Iterator[_Part]:
        start = 0
        for block in blocks:
            rows = slice(start, start + len(block))
            yield np.asarray(block), labels[rows], anchors[rows]
            start = rows.stop

    plus = job.settings.plus
    decide = partial(_decide, classes=len(training.classes), sure=plus.ask_below, drop_above=plus.drop_above)
    return _joined(len(labels), job.engine.map(decide, parts()))


def _joined(n: int, blocks: Iterable[Judged]) -> Judged:
    """The judgement of n rows from that of blocks of them.

    Its arrays are made once and filled: blocks that are kept until the end would lie in memory between the large
    arrays of later ones, and none of these could be given back.
    """
    whole: dict[str, NDArray[Any]] = {}
    start = 0
    for block in blocks:
        for name, part in vars(block).items():
            if part is None:
                continue
            if name not in whole:
                whole[name] = np.empty((n, *part.shape[1:]), part.dtype)
            whole[name][start : start + len(part)] = part
        start += len(block.labels)
    return Judged(**whole)


# kept posteriors, web labels and anchors of some rows
_Part = tuple[Entries, NDArray[np.int64], NDArray[np.bool_]]


def _decide(part: _Part, *, classes: int, sure: float, drop_above: float) -> Judged:
    """What follows from the posteriors of some rows."""
    block, given, anchored = part
    y, kind = torch.from_numpy(given), kind_of(given)
    q, words, picture = (
        torch.from_numpy(KeptScores(block, name, kind.states(classes), other)[:])
        for name, other in (("posterior", 0.0), ("words", -np.inf), ("picture", -np.inf))
    )
    none = None
    if kind.multi_label:
        decided = decide_multi_label(q, y)
        by_picture, by_words = picture.sigmoid(), words.sigmoid()
    else:
        decided = decide(q, y, torch.from_numpy(anchored), sure=sure, drop_above=drop_above)
        by_picture, by_words = picture.exp()[:, :classes], words.exp()[:, :classes]
        none = q[:, classes].clone().numpy()  # a view would keep all of q
    scores = {"fused": q[:, :classes], "classifier": by_picture, "text": by_words}
    kept = keep(
        {name: each.numpy() for name, each in scores.items()},
        kind.membership(given, classes),
        multi_label=kind.multi_label,
    )
    return Judged(decided.labels.numpy(), decided.decisions.numpy(), kept, none, decided.ask.numpy())


def work(job: Job) -> dict[str, Any]:
    rule = _Rule(job.run)
    training = rule.parts.training
    anchored = anchored_of(job.run, training)
    by_posterior = job.settings.by_posterior
    judged = _by_posterior(job, rule.parts, anchored) if by_posterior else _by_rule(job, rule)
    person = decided_of(job.run, training)
    judged = with_decisions(judged, person, training.labels.cpu().numpy(), anchored.cpu().numpy())
    job.write(CLEANED_LABELS, judged.labels)
    job.write(FUSED_SCORES, judged.scores[[CLASS, "fused"]])
    if training.multi_label and job.settings.by_posterior:
        count = len(training.classes)
        given = training.labels.cpu().numpy() > 0
        fused, texts = (KeptScores(judged.scores, name, count) for name in ("fused", "text"))
        # the classifier would learn its own predictions; of a given label the picture tells that it is wrong
        blocks = (
            np.where(given[part], fused[part], texts[part]) for part in row_blocks(len(judged.labels), count)
        )
        write_rows(job.file(SOFT_LABELS), (len(judged.labels), count), blocks)
    with job.bar("neighbours of pictures", None):
        rows_of = _verdict_rows(job, training, anchored, judged, person)
    counts = Counter[str]()
    n, classes = len(training.positions), len(training.classes)
    with job.bar("verdicts", n * (2 if training.multi_label else 1)) as step:

        def tables(make: Callable[[VerdictRows], pd.DataFrame]) -> Iterator[pd.DataFrame]:
            made = job.engine.map(make, map(rows_of, row_blocks(n, classes)))
            for rows, table in zip(row_blocks(n, classes), made, strict=True):
                yield table
                step(rows.stop - rows.start)

        def counted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                counts.update(frame["decision"])
                yield frame

        if training.multi_label:  # labels as lists, beside the (sample, class) table
            write_verdicts(job.file(SAMPLE_VERDICTS), tables(verdicts.multi_label), verdicts.TYPES)
            write_verdicts(job.file(VERDICTS), counted(tables(verdicts.pairs)), verdicts.TYPES)
        else:
            job.remove(SAMPLE_VERDICTS)
            write_verdicts(job.file(VERDICTS), counted(tables(verdicts.single_label)), verdicts.TYPES)
    return dict(counts.most_common())


def _verdict_rows(
    job: Job, training: TrainingSet, anchored: Tensor, judged: Judged, decisions: DecisionArrays | None
) -> Callable[[slice], VerdictRows]:
    """From some training rows to what their verdicts are written from; a block holds nothing of other rows."""
    texts = job.read(TEXTS)
    has_text = np.concatenate([texts[part].any(axis=1) for part in row_blocks(len(texts))])
    anchors = job.read(ANCHORS)
    chosen_by = np.empty(len(has_text), dtype=np.object_)  # None where it is no anchor
    chosen_by[anchors["row"].to_numpy(dtype=np.int64)] = anchor_choice(anchors)
    with job.scratch() as scratch, job.scratch("search") as search:
        options = search_options(job, scratch)
        if job.engine.remote:
            options["through"] = SharedSearch(search, job.key, job.engine, options["budget"])
        pictures = neighbourhood(nearest(job.read(VISUAL), NEIGHBORS, **options))
    lenders = text_lenders(job.run.find(ADJACENCY), has_text)
    ids, given = np.array(training.row_ids, dtype=object), training.labels.cpu().numpy()
    distances = _text_distances(job.read(DISTANCES), ids, training.classes, given)
    person = None
    if decisions is not None:
        person = decisions.decided_pairs if training.multi_label else decisions.decided

    naming = _namings(job, training)

    def agreeing(row: int) -> int:
        return int((judged.labels[lenders[row]] == judged.labels[row]).sum())

    def block(rows: slice) -> VerdictRows:
        numbers = range(rows.start, rows.stop)
        return VerdictRows(
            ids=ids[rows],
            classes=training.classes,
            given=given[rows],
            corrected=judged.labels[rows],
            decisions=judged.decisions[rows],
            anchored=anchored[rows].cpu().numpy(),
            scores=judged.scores[rows],
            text_distance=distances[rows],
            pictures=pictures.part(rows),
            duplicates=[ids[pictures.duplicates[row]].tolist() for row in numbers],
            lenders=[ids[lenders[row]].tolist() for row in numbers],
            agreeing=np.array([] if training.multi_label else [agreeing(row) for row in numbers], np.int64),
            has_text=has_text[rows],
            chosen_by=chosen_by[rows],
            gamma=job.settings.train.gamma,
            none=None if judged.none is None else judged.none[rows],
            ask=None if judged.ask is None else judged.ask[rows],
            person=None if person is None else person[rows],
            named=None if naming is None else [naming(row) for row in numbers],
        )

    return block


def _namings(job: Job, training: TrainingSet) -> Callable[[int], str] | None:
    """From a training row to a sentence about what its texts name; None where that is no evidence."""
    if training.multi_label or not job.settings.by_posterior:
        return None
    nouns = class_nouns(classes_of(job.run))
    answers, fields = job.read(NAMED), job.run.result("embed")["fields"]
    texts = manifest_of(job.run).samples[fields].iloc[training.positions]

    def naming(row: int) -> str:
        return "".join(
            verdicts.naming_sentence(field, nouns.read(texts[field].iat[row]), training.classes)
            for field, answer in zip(fields, answers[row], strict=True)
            if answer >= 0
        )

    return naming


def _text_distances(
    table: pd.DataFrame, ids: NDArray[np.object_], classes: list[str], given: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Distance of each sample's text to its web labels in their shape, from the table of `match`; else nan."""
    distances = np.full(given.shape, np.nan)
    row, label = (
        pd.Index(ids).get_indexer(pd.Index(table["id"])),
        pd.Index(classes).get_indexer(pd.Index(table["class"])),
    )
    if kind_of(given).multi_label:
        distances[row, label] = table["distance"]
    else:
        own = label == given[row]
        distances[row[own]] = table["distance"].to_numpy()[own]
    return distances
