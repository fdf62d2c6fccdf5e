"""Which label is true? The posterior from web label, texts and picture (method `plus`, docs/plus.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capro.core.evidence import ClassMeanings, Evidence, HeadKinds, JointVectors, take
from capro.core.kept_scores import Entries, entries_type, keep, numbers_only, width_of
from capro.core.label_rule import diagnose
from capro.core.linear import NO_CALIBRATION, Centring, numbers_of_fit
from capro.core.posterior import MultiLabelPosterior, Posterior, SingleLabelPosterior, Views
from capro.core.views import Centres
from capro.models.classes import classes_of, meant_sense, rival_senses
from capro.models.folders import has_text_tower
from capro.models.nouns import below_classes, head_senses
from capro.pipeline.artefacts import (
    CLASS_NAME_TEXTS,
    CLASS_TEXTS,
    FIELD_TEXTS,
    JOINT_PICTURES,
    JOINT_PROMPTS,
    JOINT_TEXTS,
    NAMED,
    OTHER_SENSES,
    POSTERIOR,
    VISUAL,
)
from capro.pipeline.checksums import seed_for
from capro.pipeline.engine import THIS_PROCESS, Engine, Portable
from capro.pipeline.progress import counted
from capro.pipeline.run import Run
from capro.pipeline.shards import write_rows
from capro.pipeline.stage import Job
from capro.results.label_changes import class_findings, finding_text
from capro.stages.decided import settled_by_people
from capro.train.setup import TrainingSet, anchored_of, pretrained, training_set

BLOCK = 8192  # rows that are judged at once
CELLS = 2**23  # rows x classes at most
ENOUGH = 5  # samples per class that a fit to a part should have
SCORES = ["posterior", "words", "picture"]  # of POSTERIOR


def row_blocks(n: int, width: int = 1) -> Iterator[slice]:
    """Rows in blocks, smaller ones where a row has very many numbers; one block of none where there are none."""
    size = min(BLOCK, max(1, CELLS // width))
    yield from (slice(start, min(n, start + size)) for start in range(0, max(1, n), size))


def evidence_of(run: Run, training: TrainingSet, features: NDArray[np.float32]) -> Evidence:
    """What a run knows of its training rows and classes; arrays may be memory maps."""
    fields, joint = run.result("embed")["fields"], None
    if has_text_tower(run.settings.net.backbone):
        joint_texts = [run.read(JOINT_TEXTS[name]) for name in fields]
        joint = JointVectors(run.read(JOINT_PICTURES), take(run.read(JOINT_PROMPTS)), joint_texts)
    class_texts, answers = take(run.read(CLASS_TEXTS)), [training.labels.cpu()]
    anchors = head = None
    if training.multi_label:
        meanings = ClassMeanings(class_texts, names=take(run.read(CLASS_NAME_TEXTS)))
    else:
        anchors, head = anchored_of(run, training).cpu(), head_kinds(run)
        owner = torch.tensor(run.result("embed")["sense_owners"], dtype=torch.int64)
        meanings = ClassMeanings(class_texts, senses=take(run.read(OTHER_SENSES)), owner=owner)
        named = take(run.read(NAMED))
        answers += [column for column in named.T if (column >= 0).any()]
    texts, settled = [run.read(FIELD_TEXTS[name]) for name in fields], settled_by_people(run, training)
    return Evidence(features, texts, answers, meanings, anchors, joint, settled, head)


def head_kinds(run: Run) -> HeadKinds | None:
    """The encoder's own classifier, and which of its classes are kinds of the run's; None where it has none.

    A trained encoder's features are not those that its head was made for.
    """
    settings = run.settings
    if settings.net.mode != "frozen" or settings.embed.visual != "step1":
        return None
    if has_text_tower(settings.net.backbone):  # CLIP-like: large to load, and without a head
        return None
    head = pretrained(settings).head
    if head is None:
        return None
    senses, specs = head_senses(head.names), classes_of(run)
    meant = [[] if sense is None else [sense.offset] for sense in map(meant_sense, specs)]
    own = torch.from_numpy(below_classes(senses, meant))
    rivals = [[sense.offset for sense in rival_senses(spec)] for spec in specs]
    rival = torch.from_numpy(below_classes(senses, rivals)) * (own.sum(1, keepdim=True) == 0)
    return HeadKinds(head.weight, head.bias, own, rival)


@dataclass(frozen=True)
class RunEvidence(Portable):
    """The training rows of a run and what is known of them.

    Another process reads them from the run by itself, once, with the features of `embed`.
    """

    run: Run
    set: TrainingSet | None = field(default=None, compare=False)
    features: NDArray[np.float32] | None = field(default=None, compare=False)

    @cached_property
    def training(self) -> TrainingSet:
        """The training rows."""
        return training_set(self.run) if self.set is None else self.set

    @cached_property
    def evidence(self) -> Evidence:
        """What is known of them."""
        features = self.run.read(VISUAL) if self.features is None else self.features
        return evidence_of(self.run, self.training, features)


_Block = tuple[
    slice, NDArray[np.int64], Views
]  # rows, those of the fit among them, and what is believed of these


@dataclass(frozen=True)
class RunPosterior:
    """A posterior that was fitted to all training rows, or to a random part of them.

    Attributes:
        source: The training rows.
        model: What was fitted.
        rows: Those of the fit, ascending, (m,).
    """

    source: RunEvidence
    model: Posterior
    rows: NDArray[np.int64]

    def entries(self, engine: Engine = THIS_PROCESS) -> Iterator[Entries]:
        """The posteriors of all training rows as scores that are kept, block by block.

        Args:
            engine: Who judges rows outside the fit; other processes only with the features of `embed`.
        """
        n, width = len(self.source.evidence), self.model.out_of_fold.q.shape[1]
        if len(self.rows) == n:  # everything is known already, in this process
            engine = THIS_PROCESS
        judge = _JudgeRows(self.source, self.model.without_samples())
        return engine.map(judge, map(self._block, row_blocks(n, width)))

    def _block(self, rows: slice) -> _Block:
        begin, end = np.searchsorted(self.rows, [rows.start, rows.stop])
        # a part of a tensor would be sent to other processes with the whole of it
        own = Views(*(part[begin:end].clone() for part in self.model.out_of_fold))
        return rows, self.rows[begin:end], own

    @property
    def few(self) -> bool:
        """Whether the fit had so few samples of each class that all classes share their weights."""
        return isinstance(self.model, SingleLabelPosterior) and self.model.centres is not None


@dataclass(frozen=True)
class _JudgeRows:
    """The work on a block of rows; picklable."""

    source: RunEvidence
    model: Posterior

    def __call__(self, block: _Block) -> Entries:
        """What is kept of a block: the highest posteriors, none of these and the web labels among them."""
        training, rows = self.source.training, block[0]
        q, words, picture = (part.numpy() for part in self._views(*block))
        numbers_only(q, place="posterior", name=training.id_of, begin=rows.start)
        also = training.kind.membership(training.labels[rows].cpu().numpy(), q.shape[1])
        if not training.multi_label:
            also[:, -1] = True
        scores = {"posterior": q, "words": words, "picture": picture}
        return keep(scores, also, multi_label=training.multi_label)

    def _views(self, rows: slice, fit: NDArray[np.int64], own: Views) -> Views:
        """Rows of the fit were judged out of fold in it."""
        if len(fit) == rows.stop - rows.start:
            return own
        others = np.setdiff1d(np.arange(rows.start, rows.stop), fit)
        judged = self.model.judge(self.source.evidence.take(others))
        parts = []
        for new, old in zip(judged, own, strict=True):
            merged = torch.empty(rows.stop - rows.start, new.shape[1])
            merged[others - rows.start], merged[fit - rows.start] = new, old
            parts.append(merged)
        return Views(*parts)


def fit_posterior(
    run: Run, training: TrainingSet, features: NDArray[np.float32] | None = None, *, rounds: int = 0
) -> RunPosterior:
    """The posterior of the training rows from what the run knows.

    Where EM on all rows would take more than ``plus.memory_gb``, it is fitted to a random part of them (what a
    person has decided is in it), and the others are judged with what was fitted.

    Args:
        run: The run.
        training: Its training rows.
        features: Of their pictures, (n, d); those of `embed` if None.
        rounds: Of EM; 0 for those of the settings.
    """
    settings, source = run.settings.plus, RunEvidence(run, training, features)
    evidence = source.evidence
    rows = fitted_rows(evidence, settings.memory_gb, run.settings.seed)
    part = evidence.take(slice(None) if len(rows) == len(evidence) else rows)
    options = {"folds": settings.folds, "rounds": rounds or settings.rounds, "seed": run.settings.seed}
    if training.multi_label:
        return RunPosterior(source, MultiLabelPosterior(**options).fit(part), rows)
    few = len(rows) < len(evidence) and len(rows) < ENOUGH * evidence.classes
    centres = _centres(evidence, Centring.of(part.pictures)) if few else None
    return RunPosterior(source, SingleLabelPosterior(**options, centres=centres).fit(part), rows)


def _centres(evidence: Evidence, centring: Centring) -> Centres:
    """Of the pictures of each web label, over all training rows."""
    sums = torch.zeros(evidence.classes, evidence.pictures.shape[1])
    sizes = torch.zeros(evidence.classes, dtype=torch.int64)
    for rows in row_blocks(len(evidence)):
        pictures, labels = take(evidence.pictures, rows), take(evidence.answers[0], rows)
        part = Centres.of(centring(pictures), labels, evidence.classes)
        sums, sizes = sums + part.sums, sizes + part.sizes
    return Centres(sums, sizes)


# --- memory ---------------------------------------------------------------------------------------


def _numbers(evidence: Evidence) -> tuple[int, int]:
    """What EM holds, by measure: numbers for each row (some 25 of each class, and the inputs), and for the fit."""
    texts, states = sum(texts.shape[1] for texts in evidence.texts), evidence.classes + 1
    width = evidence.pictures.shape[1]
    fit = numbers_of_fit(max(width, texts), states)
    return 2 * width + 3 * texts + (25 + len(evidence.texts) + len(evidence.answers)) * states, fit


def rows_at_once(evidence: Evidence, memory_gb: float) -> int:
    """How many rows EM can have within so much memory."""
    row, fit = _numbers(evidence)
    return max(1, int(memory_gb * 2**30 / 4 - fit) // row)


def memory_of_all(evidence: Evidence) -> float:
    """Gigabytes that EM would take with all rows."""
    row, fit = _numbers(evidence)
    return (row * len(evidence) + fit) * 4 / 2**30


def fitted_rows(evidence: Evidence, memory_gb: float, seed: int) -> NDArray[np.int64]:
    """Rows that the posterior is fitted to, ascending."""
    n, most = len(evidence), rows_at_once(evidence, memory_gb)
    if n <= most:
        return np.arange(n)
    order = np.random.default_rng(seed_for(seed, "posterior")).permutation(n)
    if evidence.settled is not None:  # a person's answers count wherever they are
        settled = np.zeros(n, dtype=bool)
        settled[evidence.settled.at] = True
        order = order[np.argsort(~settled[order], kind="stable")]
    return np.sort(order[:most])


# --- the stage ------------------------------------------------------------------------------------


def check(run: Run) -> list[str]:
    """What the posterior found of classes, in words; and whether it saw enough of them."""
    lines, result = [finding_text(finding) for finding in class_findings(run)], run.result("posterior")
    if "all_gb" in result:
        lines.append(
            f"The posterior was fitted to {result['fitted_to']:,} samples, fewer than {ENOUGH} per class, so all "
            f"classes share their weights: plus.memory_gb={result['all_gb']:g} would give each its own."
        )
    return lines


def work(job: Job) -> dict[str, Any]:
    training = training_set(job.run)
    with job.bar("fitting the posterior", None):
        posterior = fit_posterior(job.run, training)
    model, evidence = posterior.model, posterior.source.evidence
    shape = len(evidence), width_of(len(model.prior), multi_label=training.multi_label)
    with job.bar("posterior of samples", shape[0]) as step:
        entries = counted(posterior.entries(job.engine), step)
        write_rows(job.file(POSTERIOR), shape, entries, dtype=entries_type(SCORES))
    fields = job.run.result("embed")["fields"]
    result = {
        "label_weight": float(model.answer_weights[0]),
        "field_weights": dict(zip(fields, model.field_weights.mean(1).tolist(), strict=True)),
        "none_of_these": None if training.multi_label else float(model.prior[-1]),
        "fitted_to": len(posterior.rows),
        "findings": _findings(posterior),
        "calibration": None if model.calibration == NO_CALIBRATION else model.calibration._asdict(),
    }
    if model.fit_weights is not None:  # how much the image-text model's own evidence counted
        result["zero_shot_weight"] = model.zero_shot_weight
        result["fit_weights"] = dict(zip(fields, model.fit_weights.tolist(), strict=True))
    if posterior.few:  # the memory that a fit to all rows would take
        result["all_gb"] = math.ceil(10 * memory_of_all(evidence)) / 10
    return result


def _findings(posterior: RunPosterior) -> list[dict[str, Any]]:
    """Classes with something wrong, and the samples that show it (single-label), by the rows of the fit."""
    training, rows = posterior.source.training, posterior.rows
    if training.multi_label or posterior.few:  # a class of a sample or two shows nothing
        return []
    part = posterior.source.evidence.take(rows)
    anchors = anchored_of(posterior.source.run, training, by_text=True).cpu()[rows]
    if part.settled is not None:  # what a person decided is no sign of a class with something wrong
        anchors[part.settled.whole] = False
    q, classes = posterior.model.out_of_fold.q, part.meanings.texts
    return [
        {
            "kind": finding.kind,
            "classes": [training.classes[c] for c in finding.classes],
            "share": finding.share,
            "samples": [training.id_of(rows[row]) for row in finding.rows],
        }
        for finding in diagnose(q, part.answers[0], part.texts, classes, anchors=anchors)
    ]
