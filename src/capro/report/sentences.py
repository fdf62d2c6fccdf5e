"""The report in plain words: sentences from counts. Pure; the page escapes what is quoted here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capro.wording import listed, many, share, signed

# metrics in a sentence, and in a table
METRIC_NAMES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "mAP": "mean average precision"}
SHORT = {"top1": "top-1", "top5": "top-5"}


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


def chosen_threshold(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """The open-set threshold that goes with the model, and a sentence on where it comes from."""
    if found is None:
        return None
    known = found["known"]
    kept = "" if known["kept"] is None else f" It keeps {share(known['kept'], 1)} of them."
    return {
        "threshold": round(float(found["threshold"]), 2),
        "text": f"CAPro's own threshold is {found['threshold']:.2f}. It was chosen on "
        f"{many(known['samples'], 'sample')}: {known['from']}; no test image was used.{kept}",
    }


def was_wrong(counts: dict[str, int], worst: Sequence[tuple[str, float]], *, multi: bool) -> str:
    """What the verdicts mean for the labels."""
    total = sum(counts[name] for name in ("anchor", "keep", "away", "drop"))
    wrong = counts["away"] + counts["drop"]
    text = f"The method judges {share(wrong, total)} of the web labels to be wrong: "
    if multi:
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


def was_done(counts: dict[str, int] | None, anchors: dict[str, int], *, multi: bool) -> str:
    """What was done to the data; anchors are counted by what chose them."""
    text = "".join(f"{many(n, 'image')} {ANCHORS[by]}. " for by, n in anchors.items())
    if counts is not None:
        kept = counts["anchor"] + counts["keep"]
        noun = "label" if multi else "image"
        text += f"{many(kept, noun)} kept {'' if multi else 'their label'}".rstrip() + ", "
        text += (
            f"{counts['away']:,} were removed and {counts['arrived']:,} added, "
            if multi
            else f"{counts['away']:,} were relabelled, "
        )
        text += f"{counts['drop']:,} were dropped. The classifier was trained on the others."
    return text.strip()


def main_metric(results: dict[str, dict[str, float]]) -> str:
    """The metric of the first sentence: mAP with several labels, else the first."""
    return "mAP" if "mAP" in results["vanilla"] else next(iter(results["vanilla"]), "")


def brought(
    results: dict[str, dict[str, float]],
    changes: Sequence[dict[str, Any]],
    names: Sequence[str],
    *,
    tests: int,
    interval: tuple[float, float] | None,
) -> str:
    """What it brought on the test images, harm included."""
    metric = main_metric(results)
    before, after = (100 * results[name][metric] for name in ("vanilla", "capro"))
    gain = after - before
    verb = "rose" if gain > 0.05 else "fell" if gain < -0.05 else "stayed"
    to = f"{after:.1f}\N{NO-BREAK SPACE}%"
    change = f"at {to}" if verb == "stayed" else f"from {before:.1f} to {to}"
    between = ""
    if interval is not None and interval[0] == interval[0]:  # nan: too few images
        between = f" (95\N{NO-BREAK SPACE}% interval {signed(interval[0])} to {signed(interval[1])})"
    text = (
        f"On {many(tests, 'test image')} {METRIC_NAMES.get(metric, metric)} {verb} {change}, a difference "
        f"of {signed(gain / 100)} points{between} compared with the same network trained on the web labels as "
        "they are."
    )
    worse = [row for row in changes if row["change"] < 0]
    better = sum(row["change"] > 0 for row in changes)
    text += f" {many(better, 'class', 'classes')} got better, {len(worse):,} worse"
    if worse:
        first = worse[0]
        text += f" (most of all {names[first['label']]}, {signed(first['change'])} points)"
    return text + "."
