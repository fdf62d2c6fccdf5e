"""Which label is true? The posterior from web label, texts and picture (method `plus`, docs/plus.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capro.core import plus
from capro.core.kept_scores import Entries, entries_type, keep, numbers_only, width_of
from capro.models.folders import has_text_tower
from capro.pipeline.artefacts import (
    CLASS_NAME_TEXTS,
    CLASS_TEXTS,
    FIELD_TEXTS,
    JOINT_PICTURES,
    JOINT_PROMPTS,
    JOINT_TEXTS,
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
from capro.review.decisions import DecisionArrays
from capro.stages.decided import decided_of
from capro.train.setup import TrainingSet, anchored_of, text_anchors, training_set

BLOCK = 8192  # rows that are judged at once
CELLS = 2**23  # rows x classes at most
ENOUGH = 5  # samples per class that a fit to a part should have
SCORES = ["posterior", "words", "picture"]  # of POSTERIOR


Rows = NDArray[np.int64] | slice


def row_blocks(n: int, width: int = 1) -> Iterator[slice]:
    """Rows in blocks, smaller ones where a row has very many numbers; one block of none where there are none."""
    size = min(BLOCK, max(1, CELLS // width))
    yield from (slice(start, min(n, start + size)) for start in range(0, max(1, n), size))


def _tensor(array: NDArray[Any], rows: Rows = slice(None)) -> Tensor:
    return torch.from_numpy(np.array(array[rows]))


@dataclass(frozen=True)
class Evidence:
    """What a run knows of its training rows, read as far as it is asked for.

    Attributes:
        run: The run.
        training: Its training rows.
        features: Of their pictures, (n, d); may be a memory map.
    """

    run: Run
    training: TrainingSet
    features: NDArray[np.float32]

    @cached_property
    def _fields(self) -> list[NDArray[Any]]:
        return [self.run.read(FIELD_TEXTS[name]) for name in self.run.result("embed")["fields"]]

    @cached_property
    def decided(self) -> DecisionArrays | None:
        """What a person has decided; None without any decision."""
        return decided_of(self.run, self.training)

    @cached_property
    def _joint_fields(self) -> list[NDArray[Any]] | None:
        """Texts in the space of an image-text model; None where the backbone is none."""
        if not has_text_tower(self.run.settings.net.backbone):
            return None
        return [self.run.read(JOINT_TEXTS[name]) for name in self.run.result("embed")["fields"]]

    @cached_property
    def class_texts(self) -> Tensor:
        """s^c, (C, d_t)."""
        return _tensor(self.run.read(CLASS_TEXTS))

    def texts(self, rows: Rows) -> list[Tensor]:
        """Each field's text vectors, (b, d_t)."""
        return [_tensor(field, rows) for field in self._fields]

    def labels(self, rows: Rows) -> Tensor:
        """Web labels, (b,) or (b, C)."""
        return self.training.labels.cpu()[rows]

    def known(self, rows: Rows) -> Tensor | None:
        """What a person has decided of them; None without any decision."""
        if self.decided is None:
            return None
        known = self.decided.known if self.training.multi_label else self.decided.states
        return torch.from_numpy(known(rows))

    def towers(self, rows: Rows) -> plus.Towers | None:
        """The space of an image-text model, measured on these rows."""
        if self._joint_fields is None:
            return None
        pictures, prompts = self.run.read(JOINT_PICTURES), _tensor(self.run.read(JOINT_PROMPTS))
        texts = [_tensor(field, rows) for field in self._joint_fields]
        return plus.Towers.measured(_tensor(pictures, rows), prompts, texts)

    def joint(self, towers: plus.Towers | None, rows: Rows) -> plus.Joint | None:
        """What the image-text model says of these rows."""
        if towers is None or self._joint_fields is None:
            return None
        texts = [_tensor(field, rows) for field in self._joint_fields]
        return towers(_tensor(self.run.read(JOINT_PICTURES), rows), texts)

    def _numbers(self) -> tuple[int, int]:
        """What EM holds, by measure: numbers for each row (some 25 of each class, and the inputs), and for the fit."""
        texts, states = sum(field.shape[1] for field in self._fields), len(self.class_texts) + 1
        width = self.features.shape[1]
        fit = plus.numbers_of_fit(max(width, texts), states)
        return 2 * width + 3 * texts + (26 + len(self._fields)) * states, fit

    def rows_at_once(self) -> int:
        """How many rows EM can have within ``plus.memory_gb``."""
        row, fit = self._numbers()
        return max(1, int(self.run.settings.plus.memory_gb * 2**30 / 4 - fit) // row)

    def memory_gb(self) -> float:
        """What EM would take with all rows."""
        row, fit = self._numbers()
        return (row * len(self.features) + fit) * 4 / 2**30


@dataclass(frozen=True)
class Weighed:
    """A posterior that was fitted to all training rows, or to a random part of them.

    Attributes:
        evidence: What it was fitted to.
        posterior: Of the rows of the fit.
        rows: Which these are, ascending, (m,).
        centring: Of the features.
        towers: Of the image-text model, where there is one.
    """

    evidence: Evidence
    posterior: plus.Posterior
    rows: NDArray[np.int64]
    centring: plus.Centring
    towers: plus.Towers | None

    def entries(self, engine: Engine = THIS_PROCESS) -> Iterator[Entries]:
        """Beliefs in all training rows as scores that are kept, block by block.

        Args:
            engine: Who judges rows outside the fit. A remote one reads the stage's own evidence: for the
                features of `embed` alone.
        """
        n, evidence = len(self.evidence.features), self.evidence
        judge = _Judge(evidence, self.posterior.of, self.centring, self.towers, self.posterior.several)
        blocks: Iterator[_Block] = map(self._block, row_blocks(n, self.posterior.q.shape[1]))
        if not engine.remote or len(self.rows) == n:  # beliefs of the fit are in this process's memory
            return map(judge, blocks)
        # a part of a tensor would be sent with the whole of it
        copies = ((rows, fit, plus.Beliefs(*(part.clone() for part in own))) for rows, fit, own in blocks)
        return engine.map(replace(judge, evidence=_SentEvidence(evidence.run)), copies)

    def _block(self, rows: slice) -> _Block:
        begin, end = np.searchsorted(self.rows, [rows.start, rows.stop])
        found = self.posterior
        own = plus.Beliefs(*(part[begin:end] for part in (found.q, found.words, found.picture)))
        return rows, self.rows[begin:end], own


_Block = tuple[slice, NDArray[np.int64], plus.Beliefs]  # rows, those of the fit among them, and their beliefs


@dataclass(frozen=True)
class _SentEvidence(Portable):
    """The evidence of a run with the features of `embed`; each process reads it once."""

    run: Run

    @cached_property
    def read(self) -> Evidence:
        """As the stage has it."""
        return Evidence(self.run, training_set(self.run), self.run.read(VISUAL))


@dataclass(frozen=True)
class _Judge:
    """What was fitted, without the rows of the fit.

    Attributes:
        evidence: Of all training rows.
        judge: From what is known of rows to beliefs (`plus.Posterior.of`).
        centring: Of the features.
        towers: Of the image-text model, where there is one.
        several: Whether samples have several labels.
    """

    evidence: Evidence | _SentEvidence
    judge: Callable[..., plus.Beliefs]
    centring: plus.Centring
    towers: plus.Towers | None
    several: bool

    def __call__(self, block: _Block) -> Entries:
        """What is kept of a block: the highest posteriors, none of these and the web labels among them."""
        evidence = self.evidence.read if isinstance(self.evidence, _SentEvidence) else self.evidence
        rows, fit, own = block
        q, words, picture = (part.numpy() for part in self._beliefs(evidence, rows, fit, own))
        numbers_only(q, place="posterior", name=evidence.training.id_of, begin=rows.start)
        also = evidence.training.kind.membership(evidence.labels(rows).numpy(), q.shape[1])
        if not self.several:
            also[:, -1] = True
        return keep({"posterior": q, "words": words, "picture": picture}, also, multi_label=self.several)

    def _beliefs(
        self, evidence: Evidence, rows: slice, fit: NDArray[np.int64], own: plus.Beliefs
    ) -> plus.Beliefs:
        """Those of the fit were judged out of fold in it."""
        if len(fit) == rows.stop - rows.start:
            return own
        others = np.setdiff1d(np.arange(rows.start, rows.stop), fit)
        judged = self.judge(
            self.centring(_tensor(evidence.features, others)),
            evidence.texts(others),
            evidence.labels(others),
            joint=evidence.joint(self.towers, others),
            known=evidence.known(others),
        )
        parts = []
        for new, old in zip(judged, own, strict=True):
            merged = torch.empty(rows.stop - rows.start, new.shape[1])
            merged[others - rows.start], merged[fit - rows.start] = new, old
            parts.append(merged)
        return plus.Beliefs(*parts)


def weigh(run: Run, training: TrainingSet, features: NDArray[np.float32], **options: Any) -> Weighed:
    """The posterior of the training rows from features of their pictures, (n, d), and what the run knows.

    Where EM on all rows would take more than ``plus.memory_gb``, it is fitted to a random part of them (what a
    person has decided is in it), and the others are judged with what was fitted.
    """
    evidence, settings = Evidence(run, training, features), run.settings.plus
    rows = _part(evidence, run.settings.seed)
    fit: Rows = slice(None) if len(rows) == len(features) else rows
    v = _tensor(features, fit)
    centring, towers = plus.centring(v), evidence.towers(fit)
    x, texts, labels = centring(v), evidence.texts(fit), evidence.labels(fit)
    options = {
        "folds": settings.folds,
        "seed": run.settings.seed,
        "known": evidence.known(fit),
        "joint": evidence.joint(towers, fit),
        **options,
    }
    if settings.rounds:
        options.setdefault("rounds", settings.rounds)
    if training.multi_label:
        names = _tensor(run.read(CLASS_NAME_TEXTS))
        found = plus.several_labels(x, texts, evidence.class_texts, labels, class_names=names, **options)
    else:
        owners = torch.tensor(run.result("embed")["sense_owners"], dtype=torch.int64)
        options |= {"senses": _tensor(run.read(OTHER_SENSES)), "owner": owners}
        if _too_few(evidence, rows):
            centres = _centres(evidence, centring)
            found = plus.many_classes(x, texts, evidence.class_texts, labels, centres=centres, **options)
        else:
            anchors = anchored_of(run, training).cpu()[fit]
            found = plus.single_label(x, texts, evidence.class_texts, labels, anchors=anchors, **options)
    return Weighed(evidence, found, rows, centring, towers)


def _too_few(evidence: Evidence, rows: NDArray[np.int64]) -> bool:
    """Whether a part of the rows has so few of each class that all classes must share their weights."""
    return len(rows) < len(evidence.features) and len(rows) < ENOUGH * len(evidence.class_texts)


def _centres(evidence: Evidence, centring: plus.Centring) -> plus.Centres:
    """Of the pictures of each web label, over all training rows."""
    classes, (n, width) = len(evidence.class_texts), evidence.features.shape
    found = plus.Centres(torch.zeros(classes, width), torch.zeros(classes, dtype=torch.int64))
    for rows in row_blocks(n):
        part = plus.Centres.of(centring(_tensor(evidence.features, rows)), evidence.labels(rows), classes)
        found = plus.Centres(found.sums + part.sums, found.sizes + part.sizes)
    return found


def _part(evidence: Evidence, seed: int) -> NDArray[np.int64]:
    """Rows that the posterior is fitted to, ascending."""
    n, most = len(evidence.features), evidence.rows_at_once()
    if n <= most:
        return np.arange(n)
    order = np.random.default_rng(seed_for(seed, "posterior")).permutation(n)
    if evidence.decided is not None:  # a person's answers count wherever they are
        order = order[np.argsort(~evidence.decided.about_content[order], kind="stable")]
    return np.sort(order[:most])


def check(run: Run) -> list[str]:
    """What the posterior found of classes, in words; and whether it saw enough of them."""
    said, found = [finding_text(each) for each in class_findings(run)], run.result("posterior")
    if "all_gb" in found:
        said.append(
            f"The posterior was fitted to {found['fitted_to']:,} samples, fewer than {ENOUGH} per class, so all "
            f"classes share their weights: plus.memory_gb={found['all_gb']:g} would give each its own."
        )
    return said


def work(job: Job) -> dict[str, Any]:
    training = training_set(job.run)
    with job.bar("fitting the posterior", None):
        weighed = weigh(job.run, training, job.read(VISUAL))
    found = weighed.posterior
    shape = (len(training.positions), width_of(found.q.shape[1], multi_label=found.several))
    with job.bar("posterior of samples", shape[0]) as step:
        entries = counted(weighed.entries(job.engine), step)
        write_rows(job.file(POSTERIOR), shape, entries, dtype=entries_type(SCORES))
    fields = job.run.result("embed")["fields"]
    weights = found.field_weights.reshape(len(fields), -1).mean(1).tolist() if fields else []
    return {
        "label_weight": found.label_weight,
        "field_weights": dict(zip(fields, weights, strict=True)),
        **_joint_weights(found, fields),
        "none_of_these": None if found.several else float(found.prior[-1]),
        "fitted_to": len(weighed.rows),
        **_short_of_memory(weighed),
        "findings": _findings(job.run, weighed),
    }


def _short_of_memory(weighed: Weighed) -> dict[str, Any]:
    """The memory that a fit to all rows would take, where a part has too few of them."""
    evidence = weighed.evidence
    if evidence.training.multi_label or not _too_few(evidence, weighed.rows):
        return {}
    return {"all_gb": math.ceil(10 * evidence.memory_gb()) / 10}


def _joint_weights(found: plus.Posterior, fields: list[str]) -> dict[str, Any]:
    """How much the image-text model's own evidence counted, where there is one."""
    if found.zero_shot_weight is None or found.fit_weights is None:
        return {}
    fits = dict(zip(fields, found.fit_weights.tolist(), strict=True))
    return {"zero_shot_weight": found.zero_shot_weight, "fit_weights": fits}


def _findings(run: Run, weighed: Weighed) -> list[dict[str, Any]]:
    """Classes with something wrong, and the samples that show it (one label), by the rows of the fit."""
    found, evidence, rows = weighed.posterior, weighed.evidence, weighed.rows
    if found.several or _too_few(evidence, rows):  # a class of a sample or two shows nothing
        return []
    training = evidence.training
    anchors, known = text_anchors(run, training).cpu()[rows], evidence.known(rows)
    if known is not None:  # what a person decided is no sign of a class with something wrong
        anchors &= known.isnan().any(1)
    texts, labels = evidence.texts(rows), evidence.labels(rows)
    listed = plus.diagnose(found.q, labels, texts, evidence.class_texts, anchors=anchors)
    ids = [training.ids[position] for position in training.positions[rows]]
    return [
        {
            "kind": each.kind,
            "classes": [training.classes[c] for c in each.classes],
            "share": each.share,
            "samples": [ids[row] for row in each.rows],
        }
        for each in listed
    ]
