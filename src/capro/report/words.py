"""The report in plain words: sentences from counts. Pure; the page escapes what is quoted here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from capro.data.scan import explain

CLIP = 280  # characters of a web text in the page
# control characters, and those that turn the direction of the text around them
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
NAMES = {  # metrics in a sentence; SHORT, in a table
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "mAP": "mean average precision",
}


SHORT = {"top1": "top-1", "top5": "top-5"}


def plain(value: Any, clip: int = CLIP) -> str:
    """A web text on one line, without hidden characters, clipped.

    >>> plain("a\\n b\\u202ec"), plain(None), plain("x" * 9, clip=4)
    ('a bc', '', 'xxx…')
    """
    if not isinstance(value, str):
        return ""
    text = " ".join(_HIDDEN.sub("", value).split())
    return text if len(text) <= clip else text[: clip - 1] + "…"


def many(count: int, one: str, more: str | None = None) -> str:
    """A count with its noun.

    >>> many(1, "image"), many(2400, "image"), many(3, "class", "classes")
    ('1 image', '2,400 images', '3 classes')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def share(part: float, whole: float) -> str:
    """A share in per cent, never "0 %" of something that is there.

    >>> share(1, 3), share(1, 4000), share(0, 0)
    ('33\\xa0%', '0.03\\xa0%', '0\\xa0%')
    """
    value = 100 * part / whole if whole else 0.0
    if not value or value >= 9.5:
        return f"{value:.0f}\N{NO-BREAK SPACE}%"
    return f"{value:.1f}\N{NO-BREAK SPACE}%" if value >= 0.95 else f"{value:.1g}\N{NO-BREAK SPACE}%"


def signed(share: float) -> str:
    """A difference of shares in points.

    >>> signed(-0.125), signed(0.02)
    ('\N{MINUS SIGN}12.5', '+2.0')
    """
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


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


def chosen_threshold(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """The open-set threshold that goes with the model, and a sentence on where it comes from."""
    if found is None:
        return None
    known = found["known"]
    kept = "" if known["kept"] is None else f" It keeps {share(known['kept'], 1)} of them."
    return {
        "threshold": round(float(found["threshold"]), 2),
        "text": f"CAPro's own threshold is {found['threshold']:.2f}. It was chosen on "
        f"{many(known['samples'], 'sample')}: {known['from']}; no test image was looked at.{kept}",
    }


def was_wrong(counts: dict[str, int], worst: Sequence[tuple[str, float]], *, multi: bool) -> str:
    """What the verdicts say about the labels."""
    total = sum(counts[name] for name in ("anchor", "keep", "away", "drop"))
    wrong = counts["away"] + counts["drop"]
    text = f"The method takes {share(wrong, total)} of the web labels to be wrong: "
    if multi:
        text += (
            f"{many(counts['away'], 'label')} were taken away, {many(counts['drop'], 'label')} "
            f"left with a dropped image, and {many(counts['arrived'], 'label')} were missing."
        )
    else:
        text += (
            f"{many(counts['away'], 'image')} show another class, and "
            f"{many(counts['drop'], 'image')} show none of the classes well enough."
        )
    named = [f"{name} ({share(value, 1)})" for name, value in worst if value > 0]
    return text + (f" The noisiest classes are {listed(named)}." if named else "")


def was_done(counts: dict[str, int] | None, anchors: int | None, *, multi: bool) -> str:
    """What was done to the data."""
    text = ""
    if anchors is not None:
        text = (
            f"{many(anchors, 'image')} became anchors: their texts, helped by the texts of images "
            "that look alike, are nearest to what the class means. "
        )
    if counts is not None:
        kept = counts["anchor"] + counts["keep"]
        noun = "label" if multi else "image"
        text += f"{many(kept, noun)} kept {'' if multi else 'their label'}".rstrip() + ", "
        text += (
            f"{counts['away']:,} were removed and {counts['arrived']:,} added, "
            if multi
            else f"{counts['away']:,} were relabelled, "
        )
        text += f"{counts['drop']:,} were dropped. The classifier learnt from what was left."
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
    """What it brought on the test images; says so where it was harm."""
    metric = main_metric(results)
    before, after = (100 * results[name][metric] for name in ("vanilla", "capro"))
    gain = after - before
    verb = "rose" if gain > 0.05 else "fell" if gain < -0.05 else "stayed"
    to = f"{after:.1f}\N{NO-BREAK SPACE}%"
    change = f"at {to}" if verb == "stayed" else f"from {before:.1f} to {to}"
    known = interval is not None and interval[0] == interval[0]  # nan: too few images
    between = (
        f" (95\N{NO-BREAK SPACE}% interval {signed(interval[0])} to {signed(interval[1])})"
        if known and interval is not None
        else ""
    )
    text = (
        f"On {many(tests, 'test image')} {NAMES.get(metric, metric)} {verb} {change}, a difference "
        f"of {signed(gain / 100)} points{between} against the same network trained on the web labels as "
        "they came."
    )
    worse = [row for row in changes if row["change"] < 0]
    better = sum(row["change"] > 0 for row in changes)
    text += f" {many(better, 'class', 'classes')} got better, {len(worse):,} worse"
    if worse:
        first = worse[0]
        text += f" (most of all {names[first['label']]}, {signed(first['change'])} points)"
    return text + "."


# --- evidence, where the verdicts bring none ------------------------------------------------------


def evidence(
    kind: str,
    *,
    label: str,
    score: float | None,
    other: str | None = None,
    other_score: float | None = None,
    gamma: float,
    chance: float,
    anchor: dict[str, Any] | None = None,
    multi: bool = False,
) -> str:
    """Why a (sample, class) got its verdict, in one sentence.

    >>> evidence("drop", label="bat", score=0.03, gamma=0.6, chance=0.07)
    'No class reaches 0.60, and “bat” gets 0.03, less than chance (0.07).'
    """
    said = "no score" if score is None else f"{score:.2f}"
    if kind == "anchor" and anchor is not None:
        words = f" (words: {', '.join(anchor['words'])})" if anchor["words"] else ""
        lent = anchor["neighbors"]
        company = f", with those of {many(lent, 'look-alike')}" if lent else ""
        return f"Rank {anchor['rank'] + 1} of “{label}” by its text{company}{words}."
    if kind == "keep":
        if multi:
            return f"The model gives “{label}” {said}: not enough against it to take it away."
        return f"The model gives “{label}” {said}; no other class reaches {gamma:.2f}."
    if kind == "away" and multi:
        return f"The model gives “{label}” only {said}: against it by more than {gamma:.2f}."
    if kind == "arrived" and multi:
        return f"The model gives “{label}” {said}, over the threshold of {gamma:.2f}."
    if kind in ("away", "arrived"):
        given = "" if score is None else f", and “{label}” {said}"
        reached = "" if other_score is None else f"{other_score:.2f}"
        return f"The model gives “{other}” {reached}, over the threshold of {gamma:.2f}{given}."
    if multi:
        return f"The image lost every label it had; the model gives “{label}” {said}."
    return (
        f"No class reaches {gamma:.2f}, and “{label}” gets {said}, less than chance ({chance:.2f})."
    )
