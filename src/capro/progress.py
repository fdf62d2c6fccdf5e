"""Progress bars that vanish when stderr is no terminal.

A stage calls ``with bar("encoding texts", total) as step: step(64)``. ``silent`` shows nothing and is
the default everywhere, so that library calls stay quiet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from capro import launched

Step = Callable[..., None]  # step(advance, note="...")
Bar = Callable[[str, int | None], AbstractContextManager[Step]]


@contextmanager
def silent(_label: str, _total: int | None) -> Iterator[Step]:
    """No progress bar."""
    yield lambda *_args, **_fields: None


@contextmanager
def terminal(label: str, total: int | None) -> Iterator[Step]:
    """A bar with count, rate and time left on stderr; nothing where stderr is no terminal.

    Of several ranks the main one shows it.
    """
    if not sys.stderr.isatty() or not launched.is_main():
        with silent(label, total) as step:
            yield step
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total, rate="", note="")

        def step(advance: int = 1, note: str = "") -> None:
            progress.advance(task, advance)
            speed = progress.tasks[task].speed
            rate = f"{speed:,.0f}/s" if speed else ""
            progress.update(task, rate=rate, note=note or progress.tasks[task].fields["note"])

        yield step
