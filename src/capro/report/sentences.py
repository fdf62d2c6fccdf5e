"""The report in plain words: sentences from counts. Pure; the page escapes what is quoted here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capro.results.label_changes import KINDS, wrong_share
from capro.results.metrics import METRIC_NAMES
from capro.wording import listed, many, share, signed

# --- summary --------------------------------------------------------------------------------------


def came_in(summary: dict[str, Any]) -> str:
    """What came in."""
    splits = summary["splits"]
    task = "one label each" if summary["task"] == "single" else "any number of labels each"
    text = (
        f"{many(splits.get('train', 0), 'training image')} in "
        f"{many(len(summary['classes']), 'class', 'classes')}, {task}"
    )
    held = [f"{many(splits[name], f'{name} image')}" for name in ("val", "test") if name in splits]
    text += f", and {listed(held)}." if held else ". There is no test split."
    empty, train = summary["without_text"].get("train", 0), splits.get("train", 0)
    if empty:
        text += f" {many(empty, 'training image')} ({share(empty, train)}) came without any text."
    return text


def chosen_threshold(chosen: dict[str, Any]) -> dict[str, Any]:
    """The open-set threshold that goes with the model, and a sentence on where it comes from."""
    known = chosen["known"]
    kept = "" if known["kept"] is None else f" It keeps {share(known['kept'], 1)} of them."
    return {
        "threshold": round(float(chosen["threshold"]), 2),
        "text": f"CAPro's own threshold is {chosen['threshold']:.2f}. It was chosen on "
        f"{many(known['samples'], 'sample')}: {known['from']}; no test image was used.{kept}",
    }


def was_wrong(counts: dict[str, int], worst: Sequence[tuple[str, float]], *, multi_label: bool) -> str:
    """What the verdicts mean for the labels."""
    wrong = float(wrong_share(np.array([counts[kind] for kind in KINDS])))
    text = f"The method judges {share(wrong, 1)} of the web labels to be wrong: "
    if multi_label:
        text += (
            f"{many(counts['away'], 'label')} were removed, {many(counts['drop'], 'label')} "
            f"dropped with their image, and {many(counts['arrived'], 'label')} were missing."
        )
    else:
        text += (
            f"{many(counts['away'], 'image')} show another class, and "
            f"{many(counts['drop'], 'image')} show none of the classes."
        )
    named = [f"{name} ({share(value, 1)})" for name, value in worst if value > 0]
    return text + (f" The noisiest classes are {listed(named)}." if named else "")


ANCHORS = {  # by what chose them, see `capro.core.anchors.anchor_choice`
    "text": "became anchors: their texts, together with the texts of similar images, are nearest to the class text",
    "picture": "without a text became anchors: they are the most typical of their class",
    "chance": "were drawn at random as anchors",
}


def scores_are(*, calibrated: bool) -> str:
    """What the scores of the method plus mean."""
    if calibrated:
        return " The scores are calibrated by people's answers to random questions of the review."
    return " The scores are the method's own: answers to random questions of the review would calibrate them."


def was_done(counts: dict[str, int] | None, anchors: dict[str, int], *, multi_label: bool) -> str:
    """What was done to the data; anchors are counted by what chose them."""
    text = "".join(f"{many(n, 'image')} {ANCHORS[by]}. " for by, n in anchors.items())
    if counts is not None:
        kept = counts["anchor"] + counts["keep"]
        noun = "label" if multi_label else "image"
        text += f"{many(kept, noun)} kept {'' if multi_label else 'their label'}".rstrip() + ", "
        text += (
            f"{counts['away']:,} were removed and {counts['arrived']:,} added, "
            if multi_label
            else f"{counts['away']:,} were relabelled, "
        )
        text += f"{counts['drop']:,} were dropped. The classifier was trained on the others."
    return text.strip()


def brought(comparison: Mapping[str, Any], names: Sequence[str]) -> str:
    """What it brought on the test images, harm included.

    Args:
        comparison: Of `capro.report.collect`.
        names: Of the classes.
    """
    metric, changes = comparison["main"], comparison["changes"]
    figures = next(row for row in comparison["metrics"] if row["name"] == metric)
    before, after = (100 * figures[name] for name in ("vanilla", "capro"))
    gain = after - before
    verb = "rose" if gain > 0.05 else "fell" if gain < -0.05 else "stayed"
    to = f"{after:.1f}\N{NO-BREAK SPACE}%"
    change = f"at {to}" if verb == "stayed" else f"from {before:.1f} to {to}"
    between, interval = "", comparison["interval"]
    if interval is not None and interval[0] == interval[0]:  # nan: too few images
        between = f" (95\N{NO-BREAK SPACE}% interval {signed(interval[0])} to {signed(interval[1])})"
    text = (
        f"On {many(comparison['tests'], 'test image')} {METRIC_NAMES.get(metric, metric)} {verb} {change}, "
        f"a difference of {signed(gain / 100)} points{between} compared with the same network trained on the "
        "web labels as they are."
    )
    worse = [row for row in changes if row["change"] < 0]
    better = sum(row["change"] > 0 for row in changes)
    text += f" {many(better, 'class', 'classes')} got better, {len(worse):,} worse"
    if worse:
        first = worse[0]
        text += f" (most of all {names[first['label']]}, {signed(first['change'])} points)"
    return text + "."
