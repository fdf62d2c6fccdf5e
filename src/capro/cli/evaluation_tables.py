"""Tables for people: what `evaluate`, `bench` and `doctor` print, from the same data as ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from capro.cli.tables import console, table

SHOWN_WORSE = 20
SHOWN_BETTER = 5


def assessment(found: Mapping[str, Any]) -> None:
    """What `capro evaluate` tells: the whole first, then where it hurt."""
    out = console()
    opened = f", {found['open']:,} of them of no known class" if found["open"] else ""
    out.print(f"[bold]{found['samples']:,} samples[/] of {escape(found['on'])}{opened}", soft_wrap=True)
    if "methods" in found:
        _metrics(out, found)
        _classes(out, found)
        _confusions(out, found["confusion"])
        _calibration(out, found["calibration"])
    if "open_set" in found:
        _open_set(out, found["open_set"])
    if "truth" in found:
        _truth(out, found["truth"])


def percent(value: float | None, *, sign: bool = False) -> str:
    """A share as percent with one decimal; a dash where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"


def _metrics(out: Console, found: Mapping[str, Any]) -> None:
    methods, change = found["methods"], found["difference"]
    made = table("metric, %", *(f">{name}" for name in methods), ">difference")
    for name in change:
        made.add_row(
            name, *(percent(row[name]) for row in methods.values()), percent(change[name], sign=True)
        )
    for part in ("ambiguous", "unambiguous"):
        if part not in found:
            continue
        apart = found[part]
        for name in [key for key in apart["capro"] if key in ("top1", "top5", "C-F1", "mAP")]:
            values = [apart[method][name] for method in methods]
            gain = None if None in values else values[-1] - values[0]
            made.add_row(
                f"{name}, {apart['classes']} {part} classes",
                *(percent(value) for value in values),
                percent(gain, sign=True),
            )
    out.print(made)


def _classes(out: Console, found: Mapping[str, Any]) -> None:
    rows: Sequence[Mapping[str, Any]] = found["classes"]
    out.print(
        f"by class: [bold]{found['worse']} worse[/], {found['equal']} equal, "
        f"{found['better']} better than vanilla"
    )
    made = table(f"class ({found['class_figure']}, %)", ">samples", ">vanilla", ">capro", ">change")
    harmed = [row for row in rows if row["difference"] < 0][:SHOWN_WORSE]
    rest = [row for row in rows if row["difference"] >= 0]
    shown = rest if len(rows) <= SHOWN_WORSE + SHOWN_BETTER else rest[-SHOWN_BETTER:]
    for row in [*harmed, *shown]:
        style = "[red]" if row["difference"] < 0 else ""
        mark = " [yellow]ambiguous[/]" if row["ambiguous"] else ""
        made.add_row(
            style + escape(row["class"]) + mark,
            f"{row['samples']:,}",
            percent(row["vanilla"]),
            percent(row["capro"]),
            style + percent(row["difference"], sign=True),
        )
    out.print(made)
    hidden = len(rows) - len(harmed) - len(shown)
    if hidden:
        out.print(f"{hidden} more classes are in details.json (or --json)")


def _confusions(out: Console, found: Mapping[str, Any]) -> None:
    if not found["capro"]:
        return
    before = {(row["true"], row["taken_for"]): row["count"] for row in found["vanilla"]}
    made = table("most confused by capro", "taken for", ">times", ">of the class, %", ">by vanilla")
    for row in found["capro"]:
        times = before.get((row["true"], row["taken_for"]))
        made.add_row(
            escape(row["true"]),
            escape(row["taken_for"]),
            str(row["count"]),
            percent(row["share"]),
            "-" if times is None else str(times),
        )
    out.print(made)


def _calibration(out: Console, found: Mapping[str, Any]) -> None:
    parts = ", ".join(f"{name} {percent(value['ece'])}" for name, value in found.items())
    out.print(f"expected calibration error, %: {parts}")
    made = table("confidence", *(f">{name} {word}" for name in found for word in ("n", "right %")))
    bins = [value["bins"] for value in found.values()]
    for rows in zip(*bins, strict=True):
        if not any(row["count"] for row in rows):
            continue
        cells = [text for row in rows for text in (f"{row['count']:,}", percent(row["accuracy"]))]
        made.add_row(f"{rows[0]['from']:.2f} to {rows[0]['to']:.2f}", *cells)
    out.print(made)


def _open_set(out: Console, found: Mapping[str, Any]) -> None:
    out.print(
        f"[bold]open set[/]: {found['known']} known classes, {len(found['novel'])} others as one open class"
    )
    made = table("C-F1, %", ">mean over thresholds", ">best", ">at t", ">held-out t", ">at t")
    for name, row in found["methods"].items():
        best, held = row["best"], row["held_out"]
        made.add_row(
            name,
            percent(row["mean"]),
            percent(best["f1"]),
            f"{best['threshold']:.2f}",
            percent(held["f1"]) if held else "-",
            f"{held['threshold']:.2f}" if held else "-",
        )
    out.print(made)
    out.print("the best point is chosen on the data it is measured on: read the others first")
    for name, row in found["held_out"].items():
        known, rejected = row["known"], row["open"]["rejected"]
        if row["threshold"] is None:
            out.print(f"held-out t of {name}: none, there was nothing to choose it from")
            continue
        out.print(
            f"held-out t of {name}: from {known['samples']:,} {known['from']}; it keeps "
            f"{percent(known['kept'])} % of them and rejects {percent(rejected)} % of the same "
            "without their own class",
            soft_wrap=True,
        )


def _truth(out: Console, found: Mapping[str, Any]) -> None:
    noise = found["noise_detection"]
    made = table("measured on the truth", ">%")
    # several labels: a decision for every class, nearly all of them "no"
    what = "decisions per class that are right" if "found" in noise else "labels that are true"
    rows = [
        ("anchors whose label is true", found["anchor_purity"]),
        ("the same in ambiguous classes", found["anchor_purity_ambiguous"]),
        (f"web {what}", found["web_label_accuracy"]),
        (f"cleaned {what}", found["cleaned_label_accuracy"]),
        ("samples kept", found["kept"]),
        ("labels called noise", noise["called"]),
        ("... that are wrong (precision)", noise["precision"]),
        ("wrong labels called noise (recall)", noise["recall"]),
        ("new labels that are true", noise["corrected"]),
    ]
    if "found" in noise:
        rows.append(("missing labels that were added", noise["found"]))
    for name, value in rows:
        made.add_row(name, percent(value))
    out.print(made)


def findings(found: Mapping[str, Any]) -> None:
    """What `capro doctor` says: warnings, advice, and what is fine."""
    out = console()
    facts = found["facts"]
    kind = "one label each" if facts["task"] == "single" else "several labels each"
    out.print(
        f"[bold]{facts['samples']:,} training samples[/], {len(facts['sizes'])} classes, {kind}, "
        f"{facts['no_text']:.0%} without text"
    )
    colours = {"warning": "red", "advice": "yellow", "fine": "green"}
    for finding in found["findings"]:
        level = finding["level"]
        out.print(f"[{colours[level]}]{level}[/]: [bold]{finding['topic']}[/]: {escape(finding['text'])}")
        if finding["action"]:
            out.print(f"    do: {escape(finding['action'])}")
