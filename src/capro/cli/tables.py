"""Tables for people: what commands print on a terminal, built from the same data as ``--json``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capro.data.readers.columns import TEXTS
from capro.data.summary import FEW_TEXTS, explain, scan_problems
from capro.models.classes import ClassSpec, class_text, classes_of
from capro.models.senses import Suggestion
from capro.pipeline.artefacts import QUARANTINE, SUMMARY, VERDICTS
from capro.pipeline.plan import Outlook
from capro.pipeline.run import Run
from capro.wording import listed, many, some

if TYPE_CHECKING:
    from capro.demo.run import DemoRun

SHOWN_CLASSES = 40
SHOWN_SENSES = 4
SHOWN_COLUMNS = 8
READ_AS = {"image": "image", "label": "label", "text": "title", "description": "description", "tags": "tags",
           "id": "id", "split": "split"}  # what a column is read as, by its purpose  # fmt: skip
NOTES = {  # of a reader, by what it counted: the noun and what happened
    "other_files_ignored": ("file", "ignored: not an image"),
    "other_members_ignored": ("tar member", "ignored: neither image nor text"),
    "truncated_shards": ("shard", "ending too early: the complete samples are used"),
    "damaged_places": ("damaged place", "in shards: the samples around it are used"),
    "cut_texts": ("text", "longer than scan.max_text, cut there"),
    "metadata_replaced": (
        "metadata row",
        "with bytes outside the file's encoding, read as replacement characters",
    ),
    "replaced": ("text", "with bytes outside the encoding, read as replacement characters"),
}


def _console() -> Console:
    """The console of stdout; wide enough for a table when it is a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=110)


def print_line(text: str, *, whole: bool = False) -> None:
    """A line with rich's markup; ``whole``: one with a path, which a terminal must not break."""
    out = _console()
    out.print(text, soft_wrap=whole or not out.is_terminal)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table; columns that start with ``>`` are right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        made.add_row(*row)
    _console().print(made)


def short(text: str, width: int) -> str:
    """A text cut between words, with an ellipsis.

    >>> short("a cat having a striped coat", 20)
    'a cat having a …'
    """
    return textwrap.shorten(text, width, placeholder=" …")


def class_name(name: str, *, ambiguous: bool) -> str:
    """A class's name in markup, with a mark where it has several meanings."""
    return escape(name) + (" [yellow]ambiguous[/]" if ambiguous else "")


# --- a scan ---------------------------------------------------------------------------------------


def scan_summary(summary: dict[str, Any], quarantine: Path, *, without_texts: bool = False) -> None:
    """What came in, by class; what was quarantined and why; duplicates."""
    counts, notes = summary["splits"], summary["notes"]
    splits = [split for split in ("train", "val", "test") if split in counts]
    kind = "one label each" if summary["task"] == "single" else "several labels each"
    parts = ", ".join(f"{counts[split]:,} {split}" for split in splits)
    samples, classes = many(summary["samples"], "sample"), many(len(summary["classes"]), "class", "classes")
    print_line(f"[bold]{samples}[/] ({parts}), {classes}, {kind}")
    print_line(
        f"{many(summary['rows'], 'row')} in the source = {samples} + {summary['quarantined']:,} quarantined"
    )
    if "metadata_rows" in notes:
        print_line(
            f"metadata: {notes['metadata_matched']:,} of {many(notes['metadata_rows'], 'row')} matched a "
            f"file, {notes['metadata_unmatched']:,} did not; "
            f"{many(notes['files_without_metadata'], 'file has', 'files have')} no row"
        )
    for key, (noun, text) in NOTES.items():
        if notes.get(key):
            print_line(f"{many(notes[key], noun)} {text}")
    _columns(summary["columns"])
    _classes(summary["classes"], splits)
    for name, other in summary.get("joined_labels", {}).items():
        print_line(f"label '{escape(name)}' was joined with '{escape(other)}'")
    for split in splits:
        count = summary["without_text"].get(split, 0)
        if count and (split != "train" or count <= FEW_TEXTS * counts[split]):  # more is a warning
            needless = "" if split == "train" else "; that is fine, only training uses texts"
            part = f"({count / counts[split]:.0%})"
            without = many(count, f"{split} sample {part} has", f"{split} samples {part} have")
            print_line(f"{without} no text{needless}")
    if summary["quarantined"]:
        reasons = summary["quarantined_by"].items()
        rows = [(escape(reason), f"{count:,}", explain(reason)) for reason, count in reasons]
        print_table(["quarantined because", ">rows", "meaning"], rows)
        print_line(f"every quarantined row is in {escape(str(quarantine))}", whole=True)
    besides = summary | {"quarantined": 0}  # those are in the table
    for problem in scan_problems(besides, without_texts=without_texts):
        print_line(f"[bold yellow]warning[/]: {escape(problem)}")
    for train, held in summary["duplicates"]["examples"][:3]:
        print_line(f"  {escape(held)} = {escape(train)}", whole=True)


def _columns(columns: dict[str, Any]) -> None:
    """Which column was read as what, which was not, and the options that would read it."""
    read, others = columns["read"], columns["not_read"]
    if read:
        parts = ", ".join(f"{READ_AS[purpose]} from '{escape(name)}'" for purpose, name in read.items())
        print_line(f"columns: {parts}")
    if others:
        names = some([f"'{escape(name)}'" for name in others], SHOWN_COLUMNS)
        free = [f"--{purpose}-column" for purpose in ("label", *TEXTS) if purpose not in read]
        options = f"; to read one, give {listed(free, 'or')}" if free else ""
        print_line(f"columns that were not read: {names}{options}")


def _classes(classes: dict[str, dict[str, int]], splits: Sequence[str]) -> None:
    """Samples by class, the largest first; of many classes both ends."""
    order = sorted(classes, key=lambda name: -sum(classes[name].values()))
    rows = [(escape(name), *(f"{classes[name].get(split, 0):,}" for split in splits)) for name in order]
    hidden = len(rows) - SHOWN_CLASSES
    if hidden > 0:
        half = SHOWN_CLASSES // 2
        rows[half:-half] = [(f"... {hidden} more ...", *("" for _ in splits))]
    print_table(["class", *(f">{split}" for split in splits)], rows)


# --- classes and anchors --------------------------------------------------------------------------


def suggestions(found: Sequence[Suggestion]) -> None:
    """The senses of every class, best first; ambiguous classes are marked."""
    rows = []
    for suggestion in found:
        name = f"[bold]{class_name(suggestion.name, ambiguous=suggestion.ambiguous)}[/]"
        if suggestion.best is None:
            text = f"senses of '{suggestion.head}'" if suggestion.head else "no sense in WordNet"
            rows.append((f"[bold]{escape(suggestion.name)}[/]", "-", "", f"[yellow]{escape(text)}[/]"))
            name = ""
        for each in suggestion.candidates[:SHOWN_SENSES]:
            fit = "" if each.similarity is None else f"{each.similarity:.2f}"
            text = short(f"{', '.join(each.sense.words[:3])}: {each.sense.definition}", 90)
            rows.append((name, each.sense.wnid, fit, ("" if each.plausible else "[dim]") + escape(text)))
            name = ""
        hidden = len(suggestion.candidates) - SHOWN_SENSES
        if hidden > 0:
            rows.append(("", "", "", f"[dim]... and {hidden} more"))
    print_table(["class", "sense", ">fit", "meaning"], rows)


def class_texts(specs: Sequence[ClassSpec]) -> None:
    """What each class is matched by."""
    rows = [
        (
            class_name(spec.name, ambiguous=bool(spec.ambiguous)),
            spec.sense or "-",
            escape(short(class_text(spec), 70)),
        )
        for spec in specs
    ]
    print_table(["class", "sense", "class text"], rows)


def match_summary(found: dict[str, Any], anchors: Path) -> None:
    """How many anchors there are."""
    print_line(f"[bold]{many(found['anchors'], 'anchor')}[/] in {escape(str(anchors))}", whole=True)
    by_picture = found.get("chosen_by", {}).get("picture")
    if by_picture:
        one = "of them has no text and was chosen as a typical picture of its class"
        more = "of them have no text and were chosen as typical pictures of their class"
        print_line(many(by_picture, one, more))
    if found["recall"] is not None:
        print_line(f"neighbours searched by IVF with recall {found['recall']:.3f}")


# --- results --------------------------------------------------------------------------------------


def clean_summary(run: Run) -> None:
    """Verdicts by kind."""
    counts = run.result("clean")
    total = max(1, sum(counts.values()))
    parts = ", ".join(f"{count:,} {name} ({count / total:.0%})" for name, count in counts.items())
    print_line(f"verdicts: {parts}")
    print_line(f"every verdict with its evidence is in {escape(str(run.file(VERDICTS)))}", whole=True)


def outlook(outlooks: Sequence[Outlook], kept: Mapping[str, str]) -> None:
    """What a run would do with each stage, and why; ``kept`` says where its old result goes."""
    colours = {"fresh": "green", "stale": "yellow", "to do": "default"}
    rows = [
        (each.stage, f"[{colours[each.state]}]{each.state}[/]", escape(each.why + kept[each.stage]))
        for each in outlooks
    ]
    print_table(["stage", "state", "because"], rows)
    count = sum(each.state != "fresh" for each in outlooks)
    stages = many(len(outlooks), "stage")
    print_line(f"{count} of {stages} would be done" if count else "nothing is left to do")


def run_summary(run: Run, found: dict[str, dict[str, float]]) -> None:
    """What a finished run did to the labels, and what it was worth."""
    if run.finished("clean"):
        clean_summary(run)
    headline_table(found)


def headline_table(found: dict[str, dict[str, float]]) -> None:
    """Vanilla against CAPro, with the difference."""
    if not found:
        print_line("no test split, so the models were not compared: give test data with --test")
        return
    names = list(found["vanilla"])
    rows = [(method, *(f"{100 * row[name]:.1f}" for name in names)) for method, row in found.items()]
    gains = (f"{100 * (found['capro'][name] - found['vanilla'][name]):+.1f}" for name in names)
    print_table(["on the test set", *(f">{name}" for name in names)], [*rows, ("difference", *gains)])


def demo_summary(demo: DemoRun) -> None:
    """What came out of the demo, from the data to the comparison."""
    run, specs = demo.run, classes_of(demo.run)
    scan_summary(run.read(SUMMARY), run.file(QUARANTINE))
    class_texts(specs)
    chosen = np.array([bool(spec.ambiguous) for spec in specs])
    rows = [
        (name, f"{np.nanmean(values):.3f}", f"{np.nanmean(values[chosen]):.3f}" if chosen.any() else "-")
        for name, values in demo.purity.items()
    ]
    print_table(["anchors by", ">all classes", ">ambiguous classes"], rows)
    clean_summary(run)
    print_line(
        f"labels that are true: {demo.truth['web_label_accuracy']:.1%} of the web labels, "
        f"{demo.truth['cleaned_label_accuracy']:.1%} after cleaning; {demo.truth['kept']:.1%} of the samples are kept"
    )
    headline_table(run.result("evaluate"))
