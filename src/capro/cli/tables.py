"""Tables for people: what commands print on a terminal, built from the same data as ``--json``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capro.data.summary import explain
from capro.run.artefacts import QUARANTINE, SUMMARY, VERDICTS
from capro.run.directory import Run
from capro.text.classes import ClassSpec, class_text, classes_of
from capro.text.senses import Suggestion

if TYPE_CHECKING:
    from capro.demo.run import DemoRun

SHOWN_CLASSES = 40
SHOWN_SENSES = 4


def console() -> Console:
    """The console of stdout; wide enough for a table when it is a pipe."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=110)


def table(*columns: str, title: str | None = None) -> Table:
    """A plain table; columns that start with ``>`` are right-aligned."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left")
    return made


def short(text: str, width: int) -> str:
    """A text cut between words, with an ellipsis.

    >>> short("a cat having a striped coat", 20)
    'a cat having a …'
    """
    return textwrap.shorten(text, width, placeholder=" …")


def scan_summary(summary: dict[str, Any], *, quarantine: Path) -> None:
    """What came in, by class; what was quarantined and why; duplicates."""
    out = console()
    splits = [split for split in ("train", "val", "test") if split in summary["splits"]]
    kind = "one label each" if summary["task"] == "single" else "several labels each"
    parts = ", ".join(f"{summary['splits'][split]:,} {split}" for split in splits)
    out.print(f"[bold]{summary['samples']:,} samples[/] ({parts}), {len(summary['classes'])} classes, {kind}")
    out.print(
        f"{summary['rows']:,} rows in the source = {summary['samples']:,} read "
        f"+ {summary['quarantined']:,} quarantined"
    )
    _notes(out, summary["notes"])
    _classes(out, summary["classes"], splits)
    for split, count in summary["without_text"].items():
        share = count / max(1, summary["splits"][split])
        if count:
            needless = "" if split == "train" else "; only training uses it"
            out.print(f"{count:,} {split} samples ({share:.0%}) have no text{needless}")
    if summary["quarantined"]:
        made = table("quarantined because", ">rows", "meaning")
        for reason, count in summary["quarantined_by"].items():
            made.add_row(escape(reason), f"{count:,}", explain(reason))
        out.print(made)
        out.print(f"each with its reason in {escape(str(quarantine))}", soft_wrap=True)
    _duplicates(out, summary["duplicates"])


def _notes(out: Console, notes: dict[str, int]) -> None:
    if "metadata_rows" in notes:
        out.print(
            f"metadata: {notes['metadata_matched']:,} of {notes['metadata_rows']:,} rows matched a "
            f"file, {notes['metadata_unmatched']:,} did not; "
            f"{notes['files_without_metadata']:,} files have no row"
        )
    words = {
        "other_files_ignored": "files are no pictures and were ignored",
        "other_members_ignored": "tar members are neither image nor text and were ignored",
        "truncated_shards": "shards end too early: their whole members were kept",
        "metadata_replaced": "metadata rows are not UTF-8 and were read with replacement characters",
        "replaced": "texts are not UTF-8 and were read with replacement characters",
    }
    for key, text in words.items():
        if notes.get(key):
            out.print(f"{notes[key]:,} {text}")


def _classes(out: Console, classes: dict[str, dict[str, int]], splits: list[str]) -> None:
    made = table("class", *(f">{split}" for split in splits))
    order = sorted(classes, key=lambda name: -sum(classes[name].values()))
    shown = order if len(order) <= SHOWN_CLASSES else order[: SHOWN_CLASSES // 2]
    rest = [] if len(order) <= SHOWN_CLASSES else order[-SHOWN_CLASSES // 2 :]
    for name in shown:
        made.add_row(escape(name), *(f"{classes[name].get(split, 0):,}" for split in splits))
    if rest:
        made.add_row(f"... {len(order) - len(shown) - len(rest)} more ...", *("" for _ in splits))
        for name in rest:
            made.add_row(escape(name), *(f"{classes[name].get(split, 0):,}" for split in splits))
    out.print(made)


def _duplicates(out: Console, found: dict[str, Any]) -> None:
    if found["copies_in_train"]:
        differ = found["groups_with_different_labels"]
        out.print(
            f"{found['copies_in_train']:,} training images are exact copies of another"
            + (f"; {differ:,} images carry different labels in their copies" if differ else "")
        )
    if found["held_out_also_in_train"]:
        out.print(
            f"[bold red]WARNING: {found['held_out_also_in_train']:,} held-out images are in the "
            "training set as well; figures measured on them flatter[/]"
        )
        for train, held in found["examples"][:3]:
            out.print(f"  {escape(held)} = {escape(train)}", soft_wrap=True)


# --- classes and anchors --------------------------------------------------------------------------


def suggestions(found: Sequence[Suggestion]) -> None:
    """The senses of every class, best first; ambiguous classes are marked."""
    out = console()
    made = table("class", "sense", ">fit", "meaning")
    for suggestion in found:
        mark = " [yellow]ambiguous[/]" if suggestion.ambiguous else ""
        if suggestion.best is None:
            word = f"senses of '{suggestion.head}'" if suggestion.head else "no sense in WordNet"
            made.add_row(f"[bold]{escape(suggestion.name)}[/]", "-", "", f"[yellow]{escape(word)}[/]")
        for number, each in enumerate(suggestion.candidates[:SHOWN_SENSES]):
            first = number == 0 and suggestion.best is not None
            name = f"[bold]{escape(suggestion.name)}[/]{mark}" if first else ""
            fit = "" if each.similarity is None else f"{each.similarity:.2f}"
            style = "" if each.plausible else "[dim]"
            text = f"{', '.join(each.sense.words[:3])}: {each.sense.definition}"
            made.add_row(name, each.sense.wnid, fit, style + escape(short(text, 90)))
        hidden = len(suggestion.candidates) - SHOWN_SENSES
        if hidden > 0:
            made.add_row("", "", "", f"[dim]... and {hidden} more")
    out.print(made)


def match_summary(found: dict[str, Any], anchors: Path) -> None:
    """How many anchors there are."""
    out = console()
    out.print(f"[bold]{found['anchors']:,} anchors[/] in {escape(str(anchors))}")
    if found["recall"] is not None:
        out.print(f"neighbours searched by IVF with recall {found['recall']:.3f}")


def purity(found: dict[str, Any], ambiguous: Sequence[bool]) -> None:
    """Anchor purity by enhancer: all classes, and the ambiguous ones apart."""
    out = console()
    made = table("anchors by", ">all classes", ">ambiguous classes")
    chosen = np.array(ambiguous, dtype=bool)
    for name, values in found.items():
        apart = f"{np.nanmean(values[chosen]):.3f}" if chosen.any() else "-"
        made.add_row(name, f"{np.nanmean(values):.3f}", apart)
    out.print(made)


# --- results --------------------------------------------------------------------------------------


def clean_summary(found: dict[str, int], verdicts: Path) -> None:
    """Verdicts by kind."""
    out = console()
    total = max(1, sum(found.values()))
    parts = ", ".join(f"{count:,} {name} ({count / total:.0%})" for name, count in found.items())
    out.print(f"verdicts: {parts}")
    out.print(f"each with its evidence in {escape(str(verdicts))}", soft_wrap=True)


def run_summary(run: Run) -> None:
    """What a finished run did to the labels."""
    if run.finished("clean"):
        clean_summary(run.result("clean"), run.file(VERDICTS))


def comparison(found: dict[str, dict[str, float]]) -> None:
    """Vanilla against CAPro, with the difference."""
    out = console()
    if not found:
        out.print("no test split: nothing to compare on")
        return
    names = list(found["vanilla"])
    made = table("on the test set", *(f">{name}" for name in names))
    for method, row in found.items():
        made.add_row(method, *(f"{100 * row[name]:.1f}" for name in names))
    gains = [100 * (found["capro"][name] - found["vanilla"][name]) for name in names]
    made.add_row("difference", *(f"{gain:+.1f}" for gain in gains))
    out.print(made)


def label_accuracy(found: dict[str, Any]) -> None:
    """Share of true labels before and after cleaning, measured on the truth."""
    console().print(
        f"labels that are true: {found['web_label_accuracy']:.1%} of the web's, "
        f"{found['cleaned_label_accuracy']:.1%} of the cleaned set's, which keeps "
        f"{found['kept']:.1%} of the samples"
    )


def demo_summary(demo: DemoRun) -> None:
    """What came out of the demo, from the data to the comparison."""
    run = demo.run
    specs = classes_of(run)
    scan_summary(run.read(SUMMARY), quarantine=run.file(QUARANTINE))
    class_texts(specs)
    purity(demo.purity, [bool(spec.ambiguous) for spec in specs])
    run_summary(run)
    label_accuracy(demo.truth)
    comparison(run.result("evaluate"))


def class_texts(specs: Sequence[ClassSpec]) -> None:
    """What each class is matched by."""
    made = table("class", "sense", "matched by")
    for spec in specs:
        text, _ = class_text(spec)
        mark = " [yellow]ambiguous[/]" if spec.ambiguous else ""
        made.add_row(escape(spec.name) + mark, spec.sense or "-", escape(short(text, 70)))
    console().print(made)
