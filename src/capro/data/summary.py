"""What is in a manifest: counts as plain data, and what is wrong with it in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from capro.data.images import REASONS
from capro.data.manifest import ROW_REASONS, Manifest
from capro.wording import many

EXAMPLES = 10  # examples kept in the summary


def summarise(manifest: Manifest, *, notes: Sequence[dict[str, int]] = ()) -> dict[str, Any]:
    """What is in a manifest, as plain data: counts, classes, texts, quarantine, duplicates."""
    frame, samples = manifest.frame, manifest.samples
    total = Counter[str]()
    for note in notes:
        total.update(note)
    text = samples["title"] + samples["description"] + samples["tags"]
    empty = text.str.strip().str.len() == 0
    reasons = frame.loc[frame["status"] != "ok", "reason"].value_counts()
    return {
        "task": manifest.task,
        "rows": len(frame),
        "samples": len(samples),
        "quarantined": int((frame["status"] != "ok").sum()),
        "splits": _counts(samples["split"].value_counts()),
        "classes": _per_class(samples),
        "unlabelled": int(sum(not labels for labels in samples["labels"])),
        "without_text": _counts(empty.groupby(samples["split"]).sum()),
        "quarantined_by": _counts(reasons),
        "duplicates": _duplicates(samples),
        "notes": dict(total),
    }


def _counts(found: pd.Series) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()}


def explain(reason: str) -> str:
    """A quarantine reason in words."""
    return REASONS.get(reason) or ROW_REASONS.get(reason) or reason


def _per_class(samples: pd.DataFrame) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    pairs = samples[["labels", "split"]].explode("labels").dropna(subset="labels")
    counts = pairs.value_counts().sort_index().reset_index()
    for name, split, count in counts.itertuples(index=False, name=None):
        table.setdefault(name, {})[split] = int(count)
    return table


def _duplicates(samples: pd.DataFrame) -> dict[str, Any]:
    """Equal images by hash: extra copies in training, and images that are in train and test."""
    train = samples[samples["split"] == "train"]
    held = samples[samples["split"].isin(["val", "test"])]
    copies = train["sha256"].duplicated(keep="first")
    first = train.drop_duplicates("sha256").set_index("sha256")
    leaked = held[held["sha256"].isin(first.index)]
    groups = train[train["sha256"].duplicated(keep=False)].groupby("sha256")["labels"]
    conflicting = int(np.sum([labels.nunique() > 1 for _, labels in groups])) if len(groups) else 0
    examples = [
        [str(first.loc[sha, "id"]), str(identity)]
        for sha, identity in leaked[["sha256", "id"]].head(EXAMPLES).itertuples(index=False)
    ]
    return {
        "copies_in_train": int(copies.sum()),
        "groups_with_different_labels": conflicting,
        "held_out_also_in_train": len(leaked),
        "examples": examples,
    }


def scan_problems(summary: dict[str, Any]) -> list[str]:
    """What was wrong with the files."""
    found = []
    if summary["quarantined"]:
        reasons = sorted(summary["quarantined_by"].items(), key=lambda item: -item[1])[:3]
        why = "; ".join(f"{count:,}: {explain(reason)}" for reason, count in reasons)
        found.append(f"{many(summary['quarantined'], 'row')} could not be used ({why}).")
    copies = summary["duplicates"]
    if copies["copies_in_train"]:
        text = f"{many(copies['copies_in_train'], 'training image')} are exact copies of another"
        differ = copies["groups_with_different_labels"]
        found.append(text + (f", {differ:,} of them under different labels." if differ else "."))
    if copies["held_out_also_in_train"]:
        found.append(
            f"{many(copies['held_out_also_in_train'], 'held-out image')} are in the training set "
            "as well: figures measured on them flatter."
        )
    return found
