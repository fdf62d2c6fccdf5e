"""Tables for people: what `evaluate` and `doctor` print, from the same data as ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from capro.cli.tables import class_name, print_line, print_table
from capro.wording import many

SHOWN_WORSE = 20
SHOWN_BETTER = 5
OF_PARTS = ("top1", "top5", "C-F1", "mAP")  # metrics shown of ambiguous and unambiguous classes apart
LEVELS = {"warning": "red", "advice": "yellow", "fine": "green"}


def assessment(found: Mapping[str, Any]) -> None:
    """What `capro evaluate` found: the whole first, then where it hurt."""
    opened = f", {found['open']:,} of them of no known class" if found["open"] else ""
    if found["samples"]:
        print_line(
            f"[bold]{many(found['samples'], 'sample')}[/] of {escape(found['on'])}{opened}", whole=True
        )
    else:
        print_line("no test split, so the models were not compared: give other data with --on")
    if "methods" in found:
        _metrics(found)
        _classes(found)
        _confusions(found["confusion"])
        _calibration(found["calibration"])
    if "open_set" in found:
        _open_set(found["open_set"])
    if "truth" in found:
        _truth(found["truth"])
    if "reviewed" in found:
        _reviewed(found["reviewed"])


def _reviewed(found: Mapping[str, Any]) -> None:
    """What a person's answers say of the labels."""
    part, decided = found["estimate"], many(found["decided"], "sample")
    if found["waiting"]:
        print_line(
            f"[bold]review[/]: {many(found['waiting'], 'random answer')} not counted yet: an earlier sample of the "
            "random order is open, the page Progress of `capro review` links to it"
        )
    if part is None:
        print_line(
            f"[bold]review[/]: {decided} decided, no random question that counts among them: "
            "only random questions show how many labels are right"
        )
        return
    words = {"before": "given labels", "after": "corrected labels, of samples kept"}
    rows = [
        (
            text,
            percent(part[name]["share"]),
            _between([part[name]["low"], part[name]["high"]]),
            f"{part[name]['hits']} of {part[name]['total']}",
        )
        for name, text in words.items()
    ]
    print_line(
        f"[bold]review[/]: {decided} decided; right labels among "
        f"{many(part['judged'], 'random question')} ({part['unsure']} not sure)",
        whole=True,
    )
    print_table(["labels", ">right, %", ">95 % interval", ">samples"], rows)


def percent(value: float | None, *, sign: bool = False) -> str:
    """A share as percent with one decimal; a dash where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"


def _metrics(found: Mapping[str, Any]) -> None:
    methods = found["methods"]
    rows = [
        (name, *(percent(row[name]) for row in methods.values()), percent(gain, sign=True))
        for name, gain in found["difference"].items()
    ]
    for part in ("ambiguous", "unambiguous"):
        apart = found.get(part, {"capro": {}})
        for name in [key for key in apart["capro"] if key in OF_PARTS]:
            values = [apart[method][name] for method in methods]
            gain = None if None in values else values[-1] - values[0]
            label = f"{name}, {many(apart['classes'], f'{part} class', f'{part} classes')}"
            rows.append((label, *(percent(value) for value in values), percent(gain, sign=True)))
    print_table(["metric, %", *(f">{name}" for name in methods), ">difference"], rows)


def _classes(found: Mapping[str, Any]) -> None:
    classes: Sequence[Mapping[str, Any]] = found["classes"]
    print_line(
        f"by class: [bold]{found['worse']} worse[/], {found['equal']} equal, "
        f"{found['better']} better than vanilla"
    )
    harmed = [row for row in classes if row["difference"] < 0][:SHOWN_WORSE]
    rest = [row for row in classes if row["difference"] >= 0]
    shown = [*harmed, *(rest if len(classes) <= SHOWN_WORSE + SHOWN_BETTER else rest[-SHOWN_BETTER:])]
    rows = []
    for row in shown:
        style = "[red]" if row["difference"] < 0 else ""
        name = class_name(row["class"], ambiguous=row["ambiguous"])
        figures = (percent(row["vanilla"]), percent(row["capro"]))
        change = percent(row["difference"], sign=True)
        rows.append((style + name, f"{row['samples']:,}", *figures, style + change))
    head = f"class ({found['class_figure']}, %)"
    print_table([head, ">samples", ">vanilla", ">capro", ">change"], rows)
    if hidden := len(classes) - len(shown):
        print_line(f"{many(hidden, 'more class is', 'more classes are')} in details.json (or --json)")


def _confusions(found: Mapping[str, Any]) -> None:
    if not found["capro"]:
        return
    before = {(row["true"], row["taken_for"]): str(row["count"]) for row in found["vanilla"]}
    rows = [
        (
            escape(row["true"]),
            escape(row["taken_for"]),
            str(row["count"]),
            percent(row["share"]),
            before.get((row["true"], row["taken_for"]), "-"),
        )
        for row in found["capro"]
    ]
    print_table(["most confused by capro", "taken for", ">times", ">of the class, %", ">by vanilla"], rows)


def _calibration(found: Mapping[str, Any]) -> None:
    parts = ", ".join(f"{name} {percent(value['ece'])}" for name, value in found.items())
    print_line(f"expected calibration error, %: {parts}")
    rows = [
        (
            f"{bins[0]['from']:.2f} to {bins[0]['to']:.2f}",
            *(text for each in bins for text in (f"{each['count']:,}", percent(each["accuracy"]))),
        )
        for bins in zip(*(value["bins"] for value in found.values()), strict=True)
        if any(each["count"] for each in bins)
    ]
    print_table(["confidence", *(f">{name} {what}" for name in found for what in ("n", "right %"))], rows)


def _open_set(found: Mapping[str, Any]) -> None:
    print_line(
        f"[bold]open set[/]: {many(found['known'], 'known class', 'known classes')}, "
        f"{many(len(found['novel']), 'other')} as one open class"
    )
    rows = []
    for name, row in found["methods"].items():
        points = [row["best"], row["held_out"] or {"f1": None, "threshold": None}]
        limits = ["-" if p["threshold"] is None else f"{p['threshold']:.2f}" for p in points]
        pairs = [text for p, t in zip(points, limits, strict=True) for text in (percent(p["f1"]), t)]
        rows.append((name, percent(row["mean"]), *pairs))
    print_table(
        ["C-F1, %", ">mean over thresholds", ">best", ">at threshold", ">held out", ">at threshold"], rows
    )
    print_line("'best' is chosen on the data that it is measured on, so it is too high: prefer the others")
    for name, row in found["held_out"].items():
        known, rejected = row["known"], row["open"]["rejected"]
        how = (
            f"from {known['samples']:,} {known['from']}; it keeps {percent(known['kept'])} % of them and "
            f"rejects {percent(rejected)} % of the same samples without their own class"
        )
        nothing = "none, since there are no samples to choose it on"
        print_line(
            f"held-out threshold of {name}: {nothing if row['threshold'] is None else how}", whole=True
        )


def _truth(found: Mapping[str, Any]) -> None:
    noise, intervals = found["noise_detection"], found["intervals"]
    _truth_notes(found)
    # several labels: a decision for every class, nearly all of them "no"
    what = "decisions per class that are right" if "found" in noise else "labels that are true"
    anchors = (
        # of some checked samples a class has few anchors: they are counted together
        [("checked anchors whose label is true", found["anchor_share"], "anchor_share")]
        if intervals
        else [
            ("anchors whose label is true", found["anchor_purity"], ""),
            ("the same in ambiguous classes", found["anchor_purity_ambiguous"], ""),
        ]
    )
    figures = [
        *anchors,
        (f"web {what}", found["web_label_accuracy"], "web_label_accuracy"),
        (f"cleaned {what}", found["cleaned_label_accuracy"], "cleaned_label_accuracy"),
        ("samples kept", found["kept"], ""),
        ("labels judged wrong", noise["called"], "called"),
        ("... of which are wrong (precision)", noise["precision"], "precision"),
        ("wrong labels that were judged wrong (recall)", noise["recall"], "recall"),
        ("new labels that are true", noise["corrected"], "corrected"),
    ]
    if "found" in noise:
        figures.append(("missing labels that were added", noise["found"], "found"))
    rows = [(name, percent(value), _between(intervals.get(key))) for name, value, key in figures]
    if intervals:
        print_table(["estimated from true labels", ">%", ">95 % interval"], rows)
    else:
        print_table(["measured by true labels", ">%"], [row[:2] for row in rows])


def _between(interval: Sequence[float | None] | None) -> str:
    if interval is None or interval[0] is None:
        return ""
    return f"{percent(interval[0])} to {percent(interval[1])}"


def _truth_notes(found: Mapping[str, Any]) -> None:
    """How much of the truth is known, and what in its file may be a mistake."""
    if found["checked"] < found["of"]:
        print_line(
            f"{found['checked']:,} of {many(found['of'], 'training sample')} "
            f"{'has' if found['checked'] == 1 else 'have'} a true label: the figures are estimates "
            "for all of them, valid if the checked samples were drawn at random"
        )
    if found["of_no_class"]:
        print_line(
            f"{many(found['of_no_class'], 'of the true labels is', 'of the true labels are')} empty, which means "
            "that a sample shows none of the classes; remove rows that nobody has checked"
        )
    if found["unmatched"]:
        one, more = (
            "name in the file is not the id of a training sample",
            "names in the file are not ids of training samples",
        )
        print_line(many(found["unmatched"], one, more))
    if found["unknown_labels"]:
        names = ", ".join(f"'{escape(name)}' ({count:,})" for name, count in found["unknown_labels"].items())
        print_line(
            f"true labels that are not a class of the run; no label of these samples counts as right: {names}"
        )


def environment(found: Mapping[str, Any]) -> None:
    """`capro doctor --environment`, in lines that can be pasted."""
    for name, value in found.items():
        if not isinstance(value, Mapping):
            print(f"{name}: {'unknown' if value is None else value}")
            continue
        shown = [f"{key} {'missing' if each is None else each}" for key, each in value.items()]
        print(f"{name}: {', '.join(shown) or 'none set'}")


def findings(found: Mapping[str, Any]) -> None:
    """What `capro doctor` found: warnings, advice, and what is fine."""
    facts = found["facts"]
    kind = "one label each" if facts["task"] == "single" else "several labels each"
    print_line(
        f"[bold]{many(facts['samples'], 'training sample')}[/], "
        f"{many(len(facts['sizes']), 'class', 'classes')}, {kind}, "
        f"{facts['no_text']:.0%} without text"
    )
    for each in found["findings"]:
        level = f"[{LEVELS[each['level']]}]{each['level']}[/]"
        print_line(f"{level}: [bold]{each['topic']}[/]: {escape(each['text'])}")
        if each["action"]:
            print_line(f"    do: {escape(each['action'])}")
