"""Versions of what capro leaves on a disk: run directories, tables of verdicts, model folders. docs/formats.md.

A version is a whole number. It is raised where an older capro would misread the new form; then this capro still
reads the older ones from ``oldest`` on, and refuses what it cannot read with a way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capro import __version__
from capro.errors import RunError, shortened


@dataclass(frozen=True)
class FormatVersion:
    """The version of a format that this capro writes, and the oldest that it reads.

    Attributes:
        name: Of the format, in messages.
        now: Written by this capro.
        oldest: Read by this capro, and all between.
        unmarked: What is read where no version is written.
    """

    name: str
    now: int = 1
    oldest: int = 1
    unmarked: int | None = None

    def check(self, found: Any, *, place: str, made_by: Any, again: str) -> None:
        """Refuse a version that this capro does not read.

        Args:
            found: As it was read; None where there is none.
            place: The file or folder.
            made_by: The version of capro that wrote it, if it says so.
            again: How to get one that can be read.
        """
        version = self.unmarked if found is None else found
        if type(version) is int and self.oldest <= version <= self.now:
            return
        reads = str(self.now) if self.oldest == self.now else f"{self.oldest} to {self.now}"
        known = isinstance(made_by, str) and made_by not in ("", __version__)
        writer = f" by capro {made_by[:20]}" if known else ""
        raise RunError(
            f"{place}: {self.name} of version {shortened(version)}{writer}, capro {__version__} reads {reads}",
            hint=f"{f'install capro {made_by[:20]}' if known else 'install the capro that made it'}, or {again}",
        )


RUN = FormatVersion("a run directory", unmarked=1)  # 0.1.0 wrote no number, and the same files
VERDICTS = FormatVersion("a table of verdicts", unmarked=1)  # 0.1.0 wrote no number; columns were added since
MODEL = FormatVersion("a model folder")

_TABLE, _WRITER = b"capro_table", b"capro_version"  # keys in the metadata of a Parquet schema


def table_metadata() -> dict[bytes, bytes]:
    """What a table of verdicts says about itself in the metadata of its Parquet schema."""
    return {_TABLE: str(VERDICTS.now).encode(), _WRITER: __version__.encode()}


def check_table(metadata: Mapping[bytes, bytes] | None, *, place: str, again: str) -> None:
    """Refuse a table of verdicts of a version that this capro does not read; any other table passes."""
    found = metadata or {}
    text = found.get(_TABLE, b"").decode("utf-8", "replace")
    version = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text or None
    writer = found.get(_WRITER, b"").decode("utf-8", "replace")
    VERDICTS.check(version, place=place, made_by=writer, again=again)
