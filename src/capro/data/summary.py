"""What is in a manifest: counts as plain data, and what is wrong with it in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from capro.data.images import REASONS
from capro.data.labels import alike
from capro.data.manifest import ROW_REASONS, Manifest
from capro.data.readers.base import ReadingNotes
from capro.wording import listed, many, share

EXAMPLES = 10  # examples kept in the summary
SHOWN = 5  # names in a sentence
FEWEST_TEXTS = 0.05  # share of the training samples; with less a run stops unless data.without_texts is set
FEW_TEXTS = 0.5  # share without text above which most anchors rest on the texts of similar pictures


def summarise(
    manifest: Manifest, *, notes: Sequence[ReadingNotes] = (), joined: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What is in a manifest, as plain data: counts, classes, texts, quarantine, duplicates.

    Args:
        manifest: The manifest.
        notes: How each source was read.
        joined: Labels that became another one, by their name in the source.
    """
    frame, samples = manifest.frame, manifest.samples
    total = Counter[str]()
    for note in notes:
        total.update(note.counts)
    text = samples["title"] + samples["description"] + samples["tags"]
    empty = text.str.strip().str.len() == 0
    reasons = frame.loc[frame["status"] != "ok", "reason"].value_counts()
    classes = _per_class(samples)
    read = {purpose: name for note in reversed(notes) for purpose, name in note.columns.items()}
    unused = dict.fromkeys(name for note in notes for name in note.unused)
    return {
        "task": manifest.task,
        "rows": len(frame),
        "samples": len(samples),
        "quarantined": int((frame["status"] != "ok").sum()),
        "splits": samples["split"].value_counts().to_dict(),
        "classes": classes,
        "alike_labels": alike({name: sum(counts.values()) for name, counts in classes.items()}),
        "joined_labels": dict(joined or {}),
        "unlabelled": int(sum(not labels for labels in samples["labels"])),
        "without_text": empty.groupby(samples["split"]).sum().to_dict(),
        "quarantined_by": reasons.to_dict(),
        "duplicates": _duplicates(samples),
        "notes": dict(total),
        "columns": {"read": read, "not_read": [name for name in unused if name not in read.values()]},
        "guessed_encodings": {
            name: encoding for note in notes for name, encoding in note.guessed_encodings.items()
        },
        "ignored_tables": [name for note in notes for name in note.ignored_tables],
        "doubtful_lines": [lines for note in notes for lines in note.doubtful_lines],
    }


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
    examples = [
        [str(first.loc[sha, "id"]), str(identity)]
        for sha, identity in leaked[["sha256", "id"]].head(EXAMPLES).itertuples(index=False)
    ]
    return {
        "copies_in_train": int(copies.sum()),
        "groups_with_different_labels": sum(labels.nunique() > 1 for _, labels in groups),
        "held_out_also_in_train": len(leaked),
        "examples": examples,
    }


def scan_problems(summary: dict[str, Any], *, without_texts: bool = False) -> list[str]:
    """What was wrong with the files; ``without_texts``: that there are no texts is meant."""
    problems = []
    if summary["quarantined"]:
        reasons = sorted(summary["quarantined_by"].items(), key=lambda item: -item[1])[:3]
        why = "; ".join(f"{count:,}: {explain(reason)}" for reason, count in reasons)
        problems.append(f"{many(summary['quarantined'], 'row')} could not be used ({why}).")
    copies = summary["duplicates"]
    if copies["copies_in_train"]:
        count = copies["copies_in_train"]
        are = "is an exact copy" if count == 1 else "are exact copies"
        text = f"{many(count, 'training image')} {are} of another image"
        differ = copies["groups_with_different_labels"]
        problems.append(
            text + (f"; {many(differ, 'group')} of copies with different labels." if differ else ".")
        )
    leaked = copies["held_out_also_in_train"]
    if leaked:
        problems.append(
            f"{many(leaked, 'test or val image')} {'is' if leaked == 1 else 'are'} in the training set as well: "
            "figures measured on them are too good. Remove them from the training data."
        )
    doubts = summary.get("doubtful_lines", [])
    if doubts:
        more = f" and {len(doubts) - SHOWN:,} more" if len(doubts) > SHOWN else ""
        problems.append(
            f"{many(len(doubts), 'row')} of several lines, each of which could be a row of the table: "
            f"{'; '.join(doubts[:SHOWN])}{more}. If they are rows, close the quote in the first line."
        )
    return [*problems, *_text_problems(summary, without_texts), *_label_problems(summary)]


def _text_problems(summary: dict[str, Any], without_texts: bool) -> list[str]:
    """Texts that are missing, or were not read as they are."""
    problems = []
    empty, total = summary["without_text"].get("train", 0), summary["splits"].get("train", 0)
    if total and empty / total > FEW_TEXTS:
        text = f"{empty:,} of {many(total, 'training sample')} ({share(empty, total)}) have no text"
        stops = empty / total > 1 - FEWEST_TEXTS and not without_texts
        how = "name the column with texts (--text-column), or give --without-texts if there are none"
        problems.append(f"{text}, so a run will stop: {how}." if stops else f"{text}.")
    for name, encoding in summary.get("guessed_encodings", {}).items():
        problems.append(
            f"{name} is not UTF-8 and was read as {encoding}; if letters look wrong, give its encoding with --encoding."
        )
    for name in summary.get("ignored_tables", []):
        ending = name[name.rindex(".") :].lower()
        problems.append(
            f"the table {name} was not read: rename it to metadata{ending} if it describes the pictures."
        )
    lacking, files = (summary["notes"].get(key, 0) for key in ("files_without_metadata", "files"))
    if lacking:
        problems.append(
            f"{lacking:,} of {many(files, 'file')} have no row in the metadata: they have no text, "
            "and the name of their folder is their label."
        )
    return problems


def _label_problems(summary: dict[str, Any]) -> list[str]:
    """Labels that may be one class."""
    groups = summary.get("alike_labels", [])
    if not groups:
        return []
    named = [listed([f"'{name}' ({count:,})" for name, count in group.items()]) for group in groups[:SHOWN]]
    more = f"; and {len(groups) - SHOWN} more groups" if len(groups) > SHOWN else ""
    return [
        f"labels that differ only in case, blanks, hyphens or underscores are separate classes: "
        f"{'; '.join(named)}{more}. --join-labels makes one class of each group."
    ]
