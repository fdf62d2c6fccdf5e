"""True labels of training samples, where somebody has them: for measuring, never for training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.data.labels import MULTI_LABEL, kind_of
from capro.data.manifest import Manifest, manifest_of
from capro.data.readers.columns import label_names, text_of
from capro.data.readers.table_files import header, whole_records
from capro.errors import DataError
from capro.pipeline.run import Run
from capro.results.metrics import binned, harmonic, mean, ranking_precision, shares_by_class, wilson
from capro.results.store import VerdictStore
from capro.stores import AnyPath

NAME_COLUMNS = ("id", "file_name", "key", "path")
TRUTH_COLUMNS = ("true_labels", "true_label", "truth", "label")
SEPARATOR = "|"
UNKNOWN = 5  # true labels that are no class, at most, which are named
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """True labels of training samples.

    Attributes:
        labels: Of every training sample, in order; None where nobody has checked it.
        unmatched: Rows of the file that name no training sample.
    """

    labels: list[tuple[str, ...] | None]
    unmatched: int


def load_truth(path: AnyPath, manifest: Manifest) -> list[tuple[str, ...]]:
    """True labels of every training sample, in order, where all of them are known; see `read_truth`."""
    found = read_truth(path, manifest).labels
    missing = sum(labels is None for labels in found)
    if missing:
        first = manifest.samples["id"].iloc[manifest.split("train")[found.index(None)]]
        raise DataError(
            f"{path}: no true label for {missing} samples, for example {first}",
            hint="the names must be sample ids, or the ends of them",
        )
    return [labels or () for labels in found]


def read_truth(path: AnyPath, manifest: Manifest) -> Truth:
    """True labels of training samples, of all or of some.

    The file is a CSV, JSONL or Parquet table with a column ``id``, ``file_name``, ``key`` or ``path``
    and a column ``true_labels`` or ``true_label`` (a list, or names separated by ``|``; empty for a sample that
    shows none of the classes). A name matches a sample if it is the sample's id, or the end of it.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file", hint="give a table with true labels")
    columns = header(path)
    name = next((column for column in NAME_COLUMNS if column in columns), None)
    truth = next((column for column in TRUTH_COLUMNS if column in columns), None)
    if name is None or truth is None:
        raise DataError(
            f"{path}: columns {', '.join(columns)} hold no sample name and true label",
            hint=f"name them {NAME_COLUMNS[1]} and {TRUTH_COLUMNS[0]}",
        )
    found = {
        text_of(row.cells.get(name)): label_names(row.cells.get(truth), SEPARATOR)[0]
        for row in whole_records(path)
    }
    ids = manifest.samples["id"].iloc[manifest.split("train")].tolist()
    names = [_name_in(found, identity) for identity in ids]
    used = {each for each in names if each is not None}
    if not used:
        example = f": there is '{next(iter(found))}', and a sample is '{ids[0]}'" if found and ids else ""
        raise DataError(
            f"{path}: none of its {len(found)} names is a training sample{example}",
            hint="the names must be sample ids, or the ends of them",
        )
    return Truth([None if each is None else found[each] for each in names], len(found) - len(used))


def _name_in(found: dict[str, tuple[str, ...]], identity: str) -> str | None:
    """The name of a sample in the file: its whole id, else ever shorter ends of it."""
    parts = identity.split("/")
    ends = ("/".join(parts[begin:]) for begin in range(len(parts)))
    return next((end for end in ends if end in found), None)


def membership(truth: Sequence[tuple[str, ...]], classes: Sequence[str]) -> NDArray[np.bool_]:
    """True labels as membership, (n, C); names outside the class list are nobody's."""
    return MULTI_LABEL.encode(truth, classes) > 0


def purity(
    anchor_rows: NDArray[np.integer], anchor_labels: NDArray[np.integer], member: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Share of each class's anchors whose web label is true, (C,); nan without an anchor."""
    return shares_by_class(anchor_labels, member[anchor_rows, anchor_labels], member.shape[1])


@dataclass(frozen=True)
class Measured:
    """What a share is the mean of, and the sample that each part belongs to.

    Pairs of (sample, class) of one sample are not independent, so an interval counts samples.
    """

    hits: Bools
    sample: NDArray[np.int64]

    @property
    def share(self) -> float:
        """NaN if there is nothing to measure."""
        return mean(self.hits)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share in the whole set, if the samples were drawn at random."""
        return wilson(self.share, len(np.unique(self.sample)))


def _pairs(chosen: Bools, hits: Bools) -> Measured:
    """Some (sample, class) pairs, or some samples: (n, C) or (n,)."""
    return Measured(hits[chosen], np.nonzero(chosen)[0])


def true_labels(labels: NDArray[np.int64], member: Bools) -> Measured:
    """Which of the kept labels are true: (n,) classes with -1 for out, or (n, C) membership.

    Multi-label: which (sample, class) decisions are right.
    """
    if labels.ndim == 1:
        kept = labels >= 0
        return _pairs(kept, member[np.arange(len(labels)), labels])
    whole = np.broadcast_to((labels >= 0).all(axis=1, keepdims=True), labels.shape)
    return _pairs(whole, (labels > 0) == member)


def noise_shares(before: NDArray[np.int64], after: NDArray[np.int64], member: Bools) -> dict[str, Measured]:
    """How well cleaning found the wrong labels, and what it put in their place.

    One label: a label that was changed or taken out is called noise. ``precision`` is the share of
    those that are really wrong, ``recall`` the share of the wrong ones that were called, and
    ``corrected`` the share of new labels that are true. Several labels: the same of every
    (sample, class) that the web gave, and ``corrected`` of those that were added; ``found`` is the
    share of missing labels that were added.

    Args:
        before: web labels, (n,) or (n, C).
        after: corrected labels in the same shape, -1 for out.
        member: truth, (n, C).

    Returns:
        Shares; of nothing where nothing was called, wrong, or replaced.
    """
    kind = kind_of(before)
    given, kept = (kind.membership(labels, member.shape[1]) for labels in (before, after))
    wrong, called, added = given & ~member, given & ~kept, kept & ~given
    shares = {
        "noise": _pairs(given, wrong),
        "called": _pairs(given, called),
        "precision": _pairs(called, wrong),
        "recall": _pairs(wrong, called),
        "corrected": _pairs(added, member),
    }
    return shares | ({"found": _pairs(~given & member, added)} if kind.multi_label else {})


def noise_detection(before: NDArray[np.int64], after: NDArray[np.int64], member: Bools) -> dict[str, float]:
    """`noise_shares` as numbers, with the F1 score of precision and recall; NaN where there is nothing to measure."""
    found = {name: each.share for name, each in noise_shares(before, after, member).items()}
    return found | {"f1": harmonic(found["precision"], found["recall"])}


def score_quality(
    scores: NDArray[np.floating],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    member: NDArray[np.bool_],
) -> dict[str, Any]:
    """How well the scores behind the verdicts rank wrong labels, and whether they mean what they say.

    ``error_average_precision``: of one minus the score of the given label, for labels that are wrong.
    ``score_ece``: expected calibration error of the score of the label that a kept sample has now; multi-label:
    of every (sample, class) decision. ``right_at_90``: share that is right among scores from 0.85 to 0.95.
    Multi-label, where most pairs are absent tags: ``given_ece`` and ``added_ece`` of the scores of given and of added
    labels by themselves, and ``added_right``, ``removed_right``, the shares of added and removed labels that are right.

    Args:
        scores: of every class, (n, C).
        before: web labels, (n,) or (n, C).
        after: corrected labels in the same shape, -1 for out.
        member: truth, (n, C).
    """
    by_tag = dict[str, float]()
    if before.ndim == 1:
        rows, kept = np.flatnonzero(before >= 0), np.flatnonzero(after >= 0)
        doubt, wrong = 1 - scores[rows, before[rows]], ~member[rows, before[rows]]
        sure, right = scores[kept, after[kept]], member[kept, after[kept]]
    else:
        given, now = before > 0, after > 0
        doubt, wrong = 1 - scores[given], ~member[given]
        sure, right = np.maximum(scores, 1 - scores).ravel(), ((scores > 0.5) == member).ravel()
        added, removed = now & ~given, given & ~now
        by_tag = {
            "given_ece": binned(scores[given], member[given]).ece,
            "added_ece": binned(scores[added], member[added]).ece,
            "added_right": mean(member[added]),
            "removed_right": mean(~member[removed]),
        }
    near = (sure > 0.85) & (sure <= 0.95)
    return {
        "error_average_precision": ranking_precision(doubt, wrong),
        "score_ece": binned(sure, right).ece,
        "right_at_90": mean(right[near]),
        **by_tag,
    }


def on_truth(run: Run, truth: AnyPath) -> dict[str, Any]:
    """Anchor purity, label accuracy before and after cleaning, and how well noise was detected.

    Where only some samples were checked the figures are theirs, and ``intervals`` say where those of the whole set
    lie with 95 %, if the checked ones were drawn at random.
    """
    store = VerdictStore(run)
    classes = store.names
    found = read_truth(truth, manifest_of(run))
    rows, total = np.flatnonzero([labels is not None for labels in found.labels]), len(found.labels)
    known = [found.labels[row] or () for row in rows]
    member = membership(known, classes)
    before, after = store.given[rows], store.corrected[rows]
    checked = store.anchors[store.anchors["row"].isin(rows)]
    anchors = np.searchsorted(rows, checked["row"]), checked["class_index"].to_numpy(dtype=np.int64)
    pure = purity(*anchors, member)
    ambiguous = np.array([bool(spec.ambiguous) for spec in store.classes])
    shares = {
        "anchor_share": Measured(member[anchors], anchors[0]),
        "web_label_accuracy": true_labels(before, member),
        "cleaned_label_accuracy": true_labels(after, member),
    }
    noise = noise_shares(before, after, member)
    return {
        "checked": len(rows),
        "of": total,
        "unmatched": found.unmatched,
        "of_no_class": sum(not labels for labels in known),
        "unknown_labels": _unknown(known, classes),
        "anchors": len(anchors[0]),
        "anchor_purity": mean(pure[~np.isnan(pure)]),
        "anchor_purity_ambiguous": mean(pure[ambiguous & ~np.isnan(pure)]),
        **{name: each.share for name, each in shares.items()},
        "kept": float(1 - store.kind.dropped(store.corrected).mean()),
        "noise_detection": noise_detection(before, after, member),
        "intervals": {name: each.interval for name, each in (shares | noise).items()}
        if len(rows) < total
        else {},
        **score_quality(store.scores[rows], before, after, member),
        "purity_by_class": dict(zip(classes, map(float, pure), strict=True)),
    }


def _unknown(truth: Sequence[tuple[str, ...]], classes: Sequence[str]) -> dict[str, int]:
    """True labels that are no class, with their counts, the most frequent first."""
    counts = Counter(name for labels in truth for name in labels if name not in set(classes))
    return dict(counts.most_common(UNKNOWN))
