"""Tables for people: what commands print on a terminal, built from the same data as ``--json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capro.data.scan import explain

SHOWN_CLASSES = 40


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


def scan_summary(summary: dict[str, Any], *, quarantine: Path) -> None:
    """What came in, by class; what was quarantined and why; duplicates."""
    out = console()
    splits = [split for split in ("train", "val", "test") if split in summary["splits"]]
    kind = "one label each" if summary["task"] == "single" else "several labels each"
    parts = ", ".join(f"{summary['splits'][split]:,} {split}" for split in splits)
    out.print(
        f"[bold]{summary['samples']:,} samples[/] ({parts}), "
        f"{len(summary['classes'])} classes, {kind}"
    )
    out.print(
        f"{summary['rows']:,} rows in the source = {summary['samples']:,} read "
        f"+ {summary['quarantined']:,} quarantined"
    )
    _notes(out, summary["notes"])
    _classes(out, summary["classes"], splits)
    for split, count in summary["without_text"].items():
        share = count / max(1, summary["splits"][split])
        if count:
            out.print(f"{count:,} {split} samples ({share:.0%}) have no text")
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
