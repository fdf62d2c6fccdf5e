"""The verdict store: what a run knows of its training samples, by row number.

Report, review, export, doctor and ground truth read a run through it: it joins manifest, labels, scores, anchors and
verdicts once. Labels are numbers in here (`capro.data.labels`); names of classes and samples are asked for where
people or files see them. Everything is read when it is first asked for, and nothing is a Python object per row: a
million rows take some hundred bytes each.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from capro.core.kept_scores import KeptScores
from capro.data.labels import NO_CLASS, LabelKind, Labels
from capro.data.manifest import Manifest
from capro.errors import RunError
from capro.models.classes import ClassSpec, classes_of
from capro.pipeline.artefacts import (
    ANCHORS,
    CLEANED_LABELS,
    FIELDS,
    FUSED_SCORES,
    MANIFEST,
    POSTERIOR,
    SAMPLE_VERDICTS,
    VERDICTS,
    VISUAL,
    Artefact,
)
from capro.pipeline.run import Run
from capro.results.label_changes import DropLevel, LabelChanges, drop_levels, label_changes

VERDICT_NAMES = ("anchor", "keep", "relabel", "drop")  # values of the column `decision`
NO_GROUP = -1
T = TypeVar("T", bound=Sized)
# columns that only the view of one sample shows, where the method has them
DETAILS = (
    "evidence", "fused_score", "classifier_probability", "prototype_similarity", "text_probability",
    "text_distance", "none_score", "outlier_score", "near_duplicate_score", "decided_by",
)  # fmt: skip


@dataclass(frozen=True)
class VerdictStore:
    """The training rows of a run, n of them, and its C classes.

    The scan must have finished. What the clean stage leaves is there where `has_verdicts` says so; to ask for it
    otherwise is an error.
    """

    run: Run

    def __len__(self) -> int:
        return len(self.ids)

    # --- from the scan ----------------------------------------------------------------------------

    def manifest_columns(self, *names: str) -> pa.Table:
        """Columns of the manifest, and ``position``: the row's number among the manifest's samples, (n,)."""
        table = self._read(MANIFEST, [*names, *({"split", "status"} - {*names})])
        table = table.filter(pc.equal(table["status"], "ok"))
        table = table.append_column("position", pa.array(np.arange(len(table))))
        return table.filter(pc.equal(table["split"], "train")).select([*names, "position"])

    def _read(self, artefact: Artefact[Any], columns: list[str]) -> pa.Table:
        return self.run.read_with(artefact, lambda file: pq.read_table(file, columns=columns))

    @cached_property
    def kind(self) -> LabelKind:
        """Single-label or multi-label."""
        return Manifest(self.run.read_with(MANIFEST, pq.read_schema).empty_table()).kind

    @property
    def multi_label(self) -> bool:
        """Whether a sample may carry any number of labels."""
        return self.kind.multi_label

    @cached_property
    def _samples(self) -> pa.Table:
        return self.manifest_columns("id", "width", "height")

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Of the rows among the manifest's samples, (n,)."""
        return np.asarray(self._samples["position"].to_numpy())

    @cached_property
    def ids(self) -> pa.Array:
        """Sample ids, (n,), as Arrow text."""
        return self._samples["id"].combine_chunks()

    @cached_property
    def pixels(self) -> NDArray[np.int64]:
        """Width times height of the picture, (n,)."""
        return np.asarray(
            self._samples["width"].to_numpy().astype(np.int64) * self._samples["height"].to_numpy()
        )

    def sample_id(self, row: int) -> str:
        """The id of a row."""
        return str(self.ids[row].as_py())

    def rows_of(self, ids: list[str]) -> NDArray[np.int64]:
        """Rows of sample ids, -1 for those that are not there."""
        return _numbers(pa.array(ids, self.ids.type), self.ids)

    @cached_property
    def classes(self) -> list[ClassSpec]:
        """As they were resolved, (C,); before that, the labels of the data."""
        if self.run.finished("classes"):
            return classes_of(self.run)
        column = self._given_names
        names = pc.unique(column.combine_chunks().flatten() if self.multi_label else column)
        return [ClassSpec(name) for name in sorted(names.drop_null().to_pylist())]

    @cached_property
    def names(self) -> list[str]:
        """Class names, (C,)."""
        return [spec.name for spec in self.classes]

    @property
    def _given_names(self) -> pa.ChunkedArray:
        name = "labels" if self.multi_label else "label"
        return self.manifest_columns(name)[name]

    @cached_property
    def given(self) -> Labels:
        """Web labels; a name that is no class is left out."""
        if not self.multi_label:
            return _numbers(self._given_names, pa.array(self.names, pa.string()))
        lists = self._given_names.combine_chunks()
        member = np.zeros((len(lists), len(self.names)), np.int64)
        rows, numbers = _flattened(lists, pa.array(self.names, pa.string()))
        member[rows, numbers] = 1
        return member

    @cached_property
    def _texts(self) -> pa.Table:
        return self.manifest_columns(*FIELDS)

    def text(self, row: int) -> dict[str, str]:
        """The texts of a row that are not empty, by field."""
        texts = {name: self._texts[name][row].as_py() for name in FIELDS}
        return {name: text for name, text in texts.items() if text}

    @cached_property
    def without_text(self) -> NDArray[np.bool_]:
        """Rows whose texts are all empty, (n,)."""
        lengths = [pc.utf8_length(pc.utf8_trim_whitespace(self._texts[name])) for name in FIELDS]
        return np.asarray(sum(np.asarray(pc.fill_null(length, 0)) for length in lengths) == 0)

    def containing(self, words: str) -> NDArray[np.bool_]:
        """Rows whose texts or id contain all of these words, in any case, (n,)."""
        hit = np.ones(len(self), dtype=bool)
        columns = [pa.chunked_array([self.ids]), *(self._texts[name] for name in FIELDS)]
        for word in words.split():
            matches = [pc.match_substring(column, word, ignore_case=True) for column in columns]
            hit &= np.logical_or.reduce([pc.fill_null(match, False).to_numpy() for match in matches])
        return hit

    # --- from other stages ------------------------------------------------------------------------

    def array(self, artefact: Artefact[NDArray[Any]]) -> NDArray[Any] | None:
        """An array of the training rows; None where its stage has not finished, or belongs to another scan."""
        values = self.run.find(artefact)
        return values if values is not None and len(values) == len(self) else None

    @cached_property
    def visual(self) -> NDArray[np.float32] | None:
        """Features of the pictures, (n, d); a memory map."""
        return self.array(VISUAL)

    @cached_property
    def evidence_parts(self) -> tuple[KeptScores, KeptScores] | None:
        """Method plus: log evidence of words and picture, (n, C + 1), or (n, C) for multi-label, each."""
        entries, states = self.array(POSTERIOR), self.kind.states(len(self.names))
        if entries is None:
            return None
        return KeptScores(entries, "words", states, -np.inf), KeptScores(entries, "picture", states, -np.inf)

    @cached_property
    def anchors(self) -> pd.DataFrame:
        """The anchors with row, class_index, rank and chosen_by; an empty table before `match`."""
        anchors = self.run.find(ANCHORS)
        columns = ["row", "class_index", "rank", "chosen_by"]
        return pd.DataFrame(columns=columns, dtype=np.int64) if anchors is None else anchors

    def anchors_of(self, label: int) -> NDArray[np.int64]:
        """Rows of the anchors of a class, the best first."""
        rows, labels = (self.anchors[name].to_numpy(np.int64) for name in ("row", "class_index"))
        return np.asarray(rows[labels == label])

    @cached_property
    def protected_anchors(self) -> NDArray[np.bool_]:
        """Labels that their sample keeps by rule (Eq. 7), since it is an anchor of the class; shape of the labels."""
        mask = np.zeros(self.given.shape, dtype=bool)
        if self.run.settings.train.policy == "capro":
            rows, labels = (self.anchors[name].to_numpy(np.int64) for name in ("row", "class_index"))
            mask[(rows, labels) if self.multi_label else (rows,)] = True
        return mask

    # --- from the clean stage ---------------------------------------------------------------------

    @property
    def has_verdicts(self) -> bool:
        """Whether the clean stage has judged these rows."""
        return self.array(CLEANED_LABELS) is not None

    @cached_property
    def corrected(self) -> Labels:
        """Labels after cleaning; -1, or a row of -1, is a dropped sample."""
        return self._of_this_scan(np.array(self.run.read(CLEANED_LABELS), dtype=np.int64))

    def _of_this_scan(self, values: T) -> T:
        """What the clean stage left, refused where the data were scanned anew since."""
        if len(values) != len(self):
            raise RunError(
                f"{self.run.place}: the verdicts belong to another scan",
                hint=f"`capro run --run {self.run.place}`",
            )
        return values

    @cached_property
    def scores(self) -> KeptScores:
        """Fused score o, or posterior, of each class, (n, C)."""
        return KeptScores(self.run.read(FUSED_SCORES), "fused", len(self.names))

    @cached_property
    def changes(self) -> LabelChanges:
        """What became of every label."""
        return label_changes(self.given, self.corrected, self.protected_anchors)

    @property
    def _verdicts(self) -> Artefact[pd.DataFrame]:
        """The table with one row per training sample, in order."""
        return SAMPLE_VERDICTS if self.multi_label else VERDICTS

    def verdict_columns(self, *names: str) -> pa.Table:
        """Columns of the verdicts; those that the method does not have are left out."""
        present = {*self.run.read_with(self._verdicts, pq.read_schema).names}
        table = self._read(self._verdicts, [name for name in names if name in present])
        return self._of_this_scan(table) if table.num_columns else table

    def _score(self, name: str) -> NDArray[np.float32] | None:
        column = self.verdict_columns(name)
        return np.asarray(column[name].to_numpy(), dtype=np.float32) if column.num_columns else None

    @cached_property
    def decision(self) -> NDArray[np.int8]:
        """Number in `VERDICT_NAMES`, (n,)."""
        return _numbers(self.verdict_columns("decision")["decision"], pa.array(VERDICT_NAMES)).astype(np.int8)

    @cached_property
    def label_score(self) -> NDArray[np.float32]:
        """Score of the given labels, low where they are likely wrong, (n,)."""
        return np.asarray(self._score("label_score"))

    @cached_property
    def outlier_score(self) -> NDArray[np.float32]:
        """Low where a picture is unlike all others, (n,)."""
        return np.asarray(self._score("outlier_score"))

    @cached_property
    def none_score(self) -> NDArray[np.float32] | None:
        """Method plus, single-label: posterior of none of the classes, (n,)."""
        return self._score("none_score")

    @cached_property
    def none_share(self) -> NDArray[np.float64] | None:
        """Method plus, single-label: q(none) / (q(none) + q(best class)), (n,).

        Above `plus.drop_above` a sample is dropped. What a person decided stays at any value: it is infinite where
        the person dropped the sample, else minus infinity.
        """
        if not self.has_verdicts or self.none_score is None:
            return None
        none, best = (np.asarray(self._score(name), np.float64) for name in ("none_score", "fused_score"))
        share = none / np.maximum(none + best, np.finfo(np.float32).tiny)
        decided = self.verdict_columns("decided_by")
        if decided.num_columns:
            person = pc.equal(decided["decided_by"], "person").to_numpy()
            share[person] = np.where(self.corrected[person] < 0, np.inf, -np.inf)
        return share

    @cached_property
    def drop_levels(self) -> list[DropLevel]:
        """What each value of `plus.drop_above` would drop; empty where the method has no such value."""
        if self.none_share is None:
            return []
        return drop_levels(self.none_share, self.run.settings.plus.drop_above)

    @cached_property
    def duplicate_group(self) -> NDArray[np.int64]:
        """Number of each row's group of near duplicates, -1 for none, (n,)."""
        lists = self.verdict_columns("near_duplicate_sets")["near_duplicate_sets"].combine_chunks()
        rows, others = _flattened(lists, self.ids)
        n = len(lists)
        graph = csr_array((np.ones(len(rows), dtype=np.int8), (rows, others)), shape=(n, n))
        group = connected_components(graph, directed=False)[1].astype(np.int64)
        group[np.bincount(group, minlength=n)[group] == 1] = NO_GROUP
        return group

    def group_of(self, row: int) -> NDArray[np.int64]:
        """A row's whole group of near duplicates in order of rows; itself where it has none."""
        group = self.duplicate_group[row]
        return np.array([row]) if group == NO_GROUP else np.flatnonzero(self.duplicate_group == group)

    @cached_property
    def _details(self) -> pa.Table:
        return self.verdict_columns(*DETAILS)

    def detail(self, row: int) -> dict[str, Any]:
        """What the verdicts say of a row beside its labels: its evidence, and the numbers behind it."""
        return {name: self._details[name][row].as_py() for name in self._details.column_names}

    def evidence(self, row: int) -> str:
        """Why a row has its verdict, in a sentence."""
        return str(self._evidence[row].as_py())

    @cached_property
    def _evidence(self) -> pa.ChunkedArray:
        return self.verdict_columns("evidence")["evidence"]

    def labels(self, row: int, *, before: bool) -> tuple[str, ...]:
        """Names of the web labels of a row, or of those after cleaning."""
        return self.kind.decode((self.given if before else self.corrected)[row], self.names)


def _numbers(names: pa.Array | pa.ChunkedArray, known: pa.Array) -> NDArray[np.int64]:
    """Names as numbers, -1 for none."""
    return np.asarray(pc.fill_null(pc.index_in(names, value_set=known), NO_CLASS), dtype=np.int64)


def _flattened(lists: pa.ListArray, known: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lists of names as pairs of row and number; unknown names are left out."""
    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    rows = np.repeat(np.arange(len(lists)), sizes)
    numbers = _numbers(lists.flatten(), known)
    return rows[numbers >= 0], numbers[numbers >= 0]
