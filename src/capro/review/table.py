"""What the review shows of a run: columns by training row, as arrays; texts stay in the files' own form.

Nothing here is a Python object per row: a million rows take some hundred bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from capro.core.kept_scores import KeptScores
from capro.data.labels import LabelKind, kind_of
from capro.data.manifest import Manifest
from capro.data.pixels import PLACES
from capro.errors import RunError
from capro.models.classes import ClassSpec, classes_of
from capro.pipeline.artefacts import (
    ANCHORS,
    CLEANED_LABELS,
    FUSED_SCORES,
    MANIFEST,
    POSTERIOR,
    SAMPLE_VERDICTS,
    VERDICTS,
    VISUAL,
    Artefact,
)
from capro.pipeline.run import Run
from capro.review.queue import Queue, chance_of_error, groups_of, make_queue, review_seed

TEXTS = ("title", "description", "tags")
SIZES = ("width", "height")
VERDICT_NAMES = ("anchor", "keep", "relabel", "drop")
NOBODY = -1


@dataclass(frozen=True)
class ReviewTable:
    """A run as the review sees it, by training row.

    Attributes:
        run: The run.
        classes: As they were resolved, (C,).
        positions: Place of each training row in the manifest's samples, (n,).
        ids: Sample ids, (n,), as Arrow text.
        given: Web labels, (n,) with -1 for none, or (n, C).
        after: The method's labels, the same shape; -1 is out.
        verdict: Number in `VERDICT_NAMES`, (n,).
        score: Label score, of the given labels, (n,).
        error: Expected number of wrong labels, (n,).
        copies: Number of the group of near duplicates, -1 for none, (n,).
        pixels: Width times height of the picture, (n,).
        anchors: Rows and classes of the anchors, (2, a).
        images: The manifest's columns that name where pictures are.
        queue: The questions in order.
    """

    run: Run
    classes: list[ClassSpec]
    positions: NDArray[np.int64]
    ids: pa.Array
    given: NDArray[np.int64]
    after: NDArray[np.int64]
    verdict: NDArray[np.int8]
    score: NDArray[np.float32]
    error: NDArray[np.float32]
    copies: NDArray[np.int64]
    pixels: NDArray[np.int64]
    anchors: NDArray[np.int64]
    images: Manifest
    queue: Queue

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def kind(self) -> LabelKind:
        """Single-label or multi-label."""
        return kind_of(self.given)

    @property
    def multi_label(self) -> bool:
        """Whether samples carry any number of labels."""
        return self.kind.multi_label

    @cached_property
    def names(self) -> list[str]:
        """Class names, (C,)."""
        return [spec.name for spec in self.classes]

    def sample_id(self, row: int) -> str:
        """The id of a row."""
        return str(self.ids[row].as_py())

    def rows_of(self, ids: list[str]) -> NDArray[np.int64]:
        """Rows of sample ids, -1 for those that are not there."""
        found = pc.index_in(pa.array(ids, self.ids.type), value_set=self.ids)
        return np.asarray(pc.fill_null(found, NOBODY).to_numpy(zero_copy_only=False), dtype=np.int64)

    def labels(self, row: int, *, before: bool) -> tuple[str, ...]:
        """Names of the web labels of a row, or of the method's."""
        return self.kind.decode((self.given if before else self.after)[row], self.names)

    @cached_property
    def _grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows by their group of near duplicates, and the group of each, (n,) each."""
        order = np.argsort(self.copies, kind="stable")
        return order, self.copies[order]

    def group_of(self, row: int) -> NDArray[np.int64]:
        """A row's whole group of near duplicates in order of rows; itself where it has none."""
        group = self.copies[row]
        if group < 0:
            return np.array([row])
        rows, groups = self._grouped
        return rows[np.searchsorted(groups, group) : np.searchsorted(groups, group, side="right")]

    @cached_property
    def fused(self) -> KeptScores:
        """Probability of each class, (n, C)."""
        return KeptScores(self.run.read(FUSED_SCORES), "fused", len(self.classes))

    @cached_property
    def visual(self) -> NDArray[np.float32] | None:
        """Features of the pictures, (n, d); a memory map."""
        return _of_rows(self.run, VISUAL, len(self))

    @cached_property
    def parts(self) -> tuple[KeptScores, KeptScores] | None:
        """Method plus: evidence of words and picture, (n, C + 1) or (n, C) each."""
        found, states = _of_rows(self.run, POSTERIOR, len(self)), len(self.classes) + (not self.multi_label)
        if found is None:
            return None
        return KeptScores(found, "words", states, -np.inf), KeptScores(found, "picture", states, -np.inf)

    @cached_property
    def _texts(self) -> pa.Table:
        """Texts of the training rows."""
        return _training(self.run, TEXTS).select(TEXTS)

    def text(self, row: int) -> dict[str, str]:
        """The texts of a row by field, those that are not empty."""
        found = {name: self._texts[name][row].as_py() for name in TEXTS}
        return {name: text for name, text in found.items() if text}

    def containing(self, words: str) -> NDArray[np.bool_]:
        """Rows whose texts or id contain all of these words, in any case, (n,)."""
        hit = np.ones(len(self), dtype=bool)
        for word in words.split():
            columns = [pa.chunked_array([self.ids]), *(self._texts[name] for name in TEXTS)]
            found = [
                pc.fill_null(pc.match_substring(column, word, ignore_case=True), False).to_numpy()
                for column in columns
            ]
            hit &= np.logical_or.reduce(found)
        return hit

    @cached_property
    def _details(self) -> pa.Table:
        """Columns of the verdicts that only the view of one sample shows."""
        return _columns_of(
            self.run,
            _verdicts(multi_label=self.multi_label),
            _detail_columns(self.run, multi_label=self.multi_label),
        )

    def detail(self, row: int) -> dict[str, Any]:
        """What the verdicts say of a row beside its labels."""
        return {name: self._details[name][row].as_py() for name in self._details.column_names}


def load_table(run: Run) -> ReviewTable:
    """Read a run that has been cleaned."""
    run.need("clean")
    training = _training(run, ("id", *SIZES))
    classes = classes_of(run)
    names = [spec.name for spec in classes]
    after = np.array(run.read(CLEANED_LABELS), dtype=np.int64)
    ids = training["id"].combine_chunks()
    if len(after) != len(ids):
        raise RunError(
            f"{run.place}: the verdicts belong to another scan", hint=f"`capro run --run {run.place}`"
        )
    multi_label = after.ndim == 2
    wanted = [
        "decision", "label_score", "outlier_score", "near_duplicate_sets",
        *_present(run, multi_label, ["none_score", "given_label"]), *(["given_labels"] if multi_label else []),
    ]  # fmt: skip
    verdicts = _columns_of(run, _verdicts(multi_label=multi_label), wanted)
    given = (
        _member(verdicts["given_labels"], names) if multi_label else _codes(verdicts["given_label"], names)
    )
    fused = KeptScores(run.read(FUSED_SCORES), "fused", len(names))
    none = _numbers(verdicts, "none_score") if "none_score" in verdicts.column_names else None
    error = chance_of_error(fused, after, none).astype(np.float32)
    copies = _copies(verdicts["near_duplicate_sets"], ids)
    concern, key = _concern(fused, given, after, multi_label=multi_label)
    group = groups_of(copies, *key)
    queue = make_queue(error, concern, group, _numbers(verdicts, "outlier_score"), seed=review_seed(run))
    anchors = run.read(ANCHORS)[["row", "class_index"]].to_numpy(np.int64).T
    return ReviewTable(
        run=run,
        classes=classes,
        positions=training["position"].to_numpy(),
        ids=ids,
        given=given,
        after=after,
        verdict=_codes(verdicts["decision"], list(VERDICT_NAMES)).astype(np.int8),
        score=_numbers(verdicts, "label_score"),
        error=error,
        copies=copies,
        pixels=training["width"].to_numpy().astype(np.int64) * training["height"].to_numpy(),
        anchors=anchors,
        images=Manifest(_columns_of(run, MANIFEST, [*PLACES, "status"])),
        queue=queue,
    )


def _training(run: Run, columns: tuple[str, ...]) -> pa.Table:
    """Columns of the training rows, with their positions among the samples."""
    table = _columns_of(run, MANIFEST, [*columns, "split", "status"])
    table = table.filter(pc.equal(table["status"], "ok"))
    table = table.append_column("position", pa.array(np.arange(len(table))))
    return table.filter(pc.equal(table["split"], "train")).drop_columns(["split", "status"])


def _columns_of(run: Run, artefact: Artefact[Any], columns: list[str]) -> pa.Table:
    """Some columns of a table of the run, in Arrow's own form."""
    return run.read_with(artefact, lambda file: pq.read_table(file, columns=columns))


def _verdicts(*, multi_label: bool) -> Artefact[Any]:
    return SAMPLE_VERDICTS if multi_label else VERDICTS


def _present(run: Run, multi_label: bool, columns: list[str]) -> list[str]:
    names = run.read_with(_verdicts(multi_label=multi_label), pq.read_schema).names
    return [name for name in columns if name in names]


def _detail_columns(run: Run, *, multi_label: bool) -> list[str]:
    wanted = [
        "evidence", "fused_score", "classifier_probability", "prototype_similarity", "text_probability",
        "text_distance", "none_score", "outlier_score", "near_duplicate_score", "decided_by",
    ]  # fmt: skip
    return _present(run, multi_label, wanted)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float32]:
    return np.asarray(table[name].to_numpy(), dtype=np.float32)


def _codes(column: pa.ChunkedArray, names: list[str]) -> NDArray[np.int64]:
    """Names as numbers, -1 for none."""
    found = pc.index_in(column, value_set=pa.array(names, column.type))
    return np.asarray(pc.fill_null(found, NOBODY).to_numpy(), dtype=np.int64)


def _member(column: pa.ChunkedArray, names: list[str]) -> NDArray[np.int64]:
    """Lists of names as membership, (n, C)."""
    lists = column.combine_chunks()
    member = np.zeros((len(lists), len(names)), dtype=np.int64)
    rows = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    codes = _codes(pa.chunked_array([lists.flatten()]), names)
    member[rows[codes >= 0], codes[codes >= 0]] = 1
    return member


def _copies(column: pa.ChunkedArray, ids: pa.Array) -> NDArray[np.int64]:
    """Number of the group of near duplicates of each row, -1 for none."""
    lists = column.combine_chunks()
    size, n = pc.list_value_length(lists).to_numpy(zero_copy_only=False), len(lists)
    rows = np.repeat(np.arange(n), size)
    others = _codes(pa.chunked_array([lists.flatten()]), ids) if len(rows) else np.zeros(0, np.int64)
    known = others >= 0
    ones = np.ones(int(known.sum()), dtype=np.int8)
    graph = csr_array((ones, (rows[known], others[known])), shape=(n, n))
    label = connected_components(graph, directed=False)[1].astype(np.int64)
    alone = np.bincount(label, minlength=n)[label] == 1
    label[alone] = NOBODY
    return label


def _concern(
    fused: KeptScores, given: NDArray[np.int64], after: NDArray[np.int64], *, multi_label: bool
) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """The class that each question is about, and what near-duplicate questions have in common."""
    if not multi_label:
        best = np.asarray(fused.argmax(axis=1), dtype=np.int64)
        return np.where(after >= 0, after, np.where(given >= 0, given, best)), (given, after)
    doubt = np.abs(fused[:] - 0.5).argmin(axis=1).astype(np.int64)
    sets = [np.unique(each, axis=0, return_inverse=True)[1].reshape(-1) for each in (given, after)]
    return doubt, (sets[0], sets[1])


def _of_rows(run: Run, artefact: Artefact[Any], count: int) -> NDArray[Any] | None:
    found = run.find(artefact)
    return found if found is not None and len(found) == count else None
