"""True labels of training samples, where somebody has them: for measuring, never for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capro.data.labels import encode, labels_of
from capro.data.manifest import Manifest, manifest_of
from capro.data.readers.columns import label_names, text_of
from capro.data.readers.table_files import header, records
from capro.errors import DataError
from capro.evaluate.metrics import average_precision, binned, harmonic, mean, shares_by_class
from capro.run.artefacts import ANCHORS, CLEANED_LABELS, FUSED_SCORES
from capro.run.directory import Run
from capro.text.classes import classes_of

NAME_COLUMNS = ("id", "file_name", "key", "path")
TRUTH_COLUMNS = ("true_labels", "true_label", "truth", "label")
SEPARATOR = "|"


def load_truth(path: Path, manifest: Manifest) -> list[tuple[str, ...]]:
    """True labels of every training sample, in order.

    The file is a CSV, JSONL or Parquet table with a column ``id``, ``file_name``, ``key`` or ``path``
    and a column ``true_labels`` or ``true_label`` (a list, or names separated by ``|``). A name
    matches a sample if it is the sample's id, or the end of it.
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
        text_of(row.cells.get(name)): label_names(row.cells.get(truth), SEPARATOR)[0] for row in records(path)
    }
    ids = manifest.samples["id"].iloc[manifest.split("train")]
    matched = [_lookup(identity, found) for identity in ids]
    missing = [identity for identity, labels in zip(ids, matched, strict=True) if labels is None]
    if missing:
        raise DataError(
            f"{path}: no true label for {len(missing)} samples, for example {missing[0]}",
            hint="the names must be sample ids, or the ends of them",
        )
    return [labels or () for labels in matched]


def _lookup(identity: str, found: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """By the whole id, then by ever shorter ends of it."""
    parts = identity.split("/")
    ends = ("/".join(parts[begin:]) for begin in range(len(parts)))
    return next((found[end] for end in ends if end in found), None)


def membership(truth: Sequence[tuple[str, ...]], classes: Sequence[str]) -> NDArray[np.bool_]:
    """True labels as membership, (n, C); names outside the class list are nobody's."""
    return encode(truth, classes, several=True) > 0


def purity(
    anchor_rows: NDArray[np.integer], anchor_labels: NDArray[np.integer], member: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Share of each class's anchors whose web label is true, (C,); nan without an anchor."""
    return shares_by_class(anchor_labels, member[anchor_rows, anchor_labels], member.shape[1])


def label_accuracy(labels: NDArray[np.int64], member: NDArray[np.bool_]) -> float:
    """Share of the kept labels that are true: (n,) classes with -1 for out, or (n, C) membership.

    For several labels this is the share of right (sample, class) decisions.
    """
    if labels.ndim == 1:
        kept = np.flatnonzero(labels >= 0)
        return mean(member[kept, labels[kept]])
    whole = (labels >= 0).all(axis=1)
    return mean((labels[whole] > 0) == member[whole])


def noise_detection(
    before: NDArray[np.int64], after: NDArray[np.int64], member: NDArray[np.bool_]
) -> dict[str, float]:
    """How well cleaning found the wrong labels, and what it put in their place.

    One label: a label that was changed or taken out is called noise. ``precision`` is the share of
    those that are really wrong, ``recall`` the share of the wrong ones that were called, and
    ``corrected`` the share of new labels that are true. Several labels: the same of every
    (sample, class) that the web gave, and ``corrected`` of those that were added; ``found`` is the
    share of missing labels that were added.

    Args:
        before: web labels, (n,) or (n, C).
        after: cleaned labels in the same shape, -1 for out.
        member: truth, (n, C).

    Returns:
        Shares; nan where nothing was called, wrong, or replaced.
    """
    if before.ndim == 1:
        rows = np.arange(len(before))
        wrong, called = ~member[rows, before], after != before
        new = called & (after >= 0)
        extra = {"corrected": _share(member[rows, after] & new, new)}
    else:
        given, kept = before > 0, after > 0
        wrong, called = given & ~member, given & ~kept
        added, missing = ~given & kept, ~given & member
        wrong, called = wrong[given], called[given]
        extra = {"corrected": _share(added & member, added), "found": _share(added & member, missing)}
    precision, recall = _share(wrong & called, called), _share(wrong & called, wrong)
    return {
        "noise": mean(wrong),
        "called": mean(called),
        "precision": precision,
        "recall": recall,
        "f1": harmonic(precision, recall),
        **extra,
    }


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float:
    return mean(part[whole])


def score_quality(
    scores: NDArray[np.floating],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    member: NDArray[np.bool_],
) -> dict[str, Any]:
    """How well the scores behind the verdicts rank wrong labels, and whether they mean what they say.

    ``error_average_precision``: of one minus the score of the given label, for labels that are wrong.
    ``score_ece``: expected calibration error of the score of the label that a kept sample has now; several labels:
    of every (sample, class) decision. ``right_at_90``: share that is right among scores from 0.85 to 0.95.

    Args:
        scores: of every class, (n, C).
        before: web labels, (n,) or (n, C).
        after: cleaned labels in the same shape, -1 for out.
        member: truth, (n, C).
    """
    if before.ndim == 1:
        rows, kept = np.flatnonzero(before >= 0), np.flatnonzero(after >= 0)
        doubt, wrong = 1 - scores[rows, before[rows]], ~member[rows, before[rows]]
        sure, right = scores[kept, after[kept]], member[kept, after[kept]]
    else:
        doubt, wrong = 1 - scores[before > 0], ~member[before > 0]
        sure, right = np.maximum(scores, 1 - scores).ravel(), ((scores > 0.5) == member).ravel()
    near = (sure > 0.85) & (sure <= 0.95)
    return {
        "error_average_precision": float(
            average_precision(doubt[:, None], wrong[:, None].astype(np.int64))[0]
        ),
        "score_ece": binned(sure, right).ece,
        "right_at_90": float(right[near].mean()) if near.any() else float("nan"),
    }


def on_truth(run: Run, truth: Path) -> dict[str, Any]:
    """Anchor purity, label accuracy before and after cleaning, and how well noise was detected."""
    manifest, specs = manifest_of(run), classes_of(run)
    classes = [spec.name for spec in specs]
    member = membership(load_truth(truth, manifest), classes)
    before = labels_of(manifest, manifest.split("train"), classes)
    after = np.array(run.read(CLEANED_LABELS))
    out = after < 0 if after.ndim == 1 else (after < 0).any(axis=1)
    anchors = run.read(ANCHORS)
    pure = purity(anchors["row"].to_numpy(), anchors["class_index"].to_numpy(), member)
    ambiguous = np.array([bool(spec.ambiguous) for spec in specs])
    return {
        "anchors": len(anchors),
        "anchor_purity": mean(pure[~np.isnan(pure)]),
        "anchor_purity_ambiguous": mean(pure[ambiguous & ~np.isnan(pure)]),
        "web_label_accuracy": label_accuracy(before, member),
        "cleaned_label_accuracy": label_accuracy(after, member),
        "kept": float(1 - out.mean()),
        "noise_detection": noise_detection(before, after, member),
        **score_quality(np.array(run.read(FUSED_SCORES)), before, after, member),
        "purity_by_class": dict(zip(classes, map(float, pure), strict=True)),
    }
