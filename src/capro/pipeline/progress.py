"""Progress: of a part of a stage, of a training, of a run with many stages.

A stage calls ``with bar("encoding texts", total) as step: step(64)``; a training also gives its
``Figures``. A run of many stages has a ``Watch``. The silent ones are the default everywhere, so that
library calls stay quiet; the live view of `capro run` is in ``capro.cli.live_view``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from capro.pipeline.ranks import is_main_process

Step = Callable[..., None]  # step(advance, figures=Figures(...))
Bar = Callable[[str, int | None], AbstractContextManager[Step]]
Say = Callable[[str], None]
B = TypeVar("B", bound=Sized)

INTERVAL = 30.0  # seconds between two lines where there is no terminal


@dataclass(frozen=True, slots=True)
class Figures:
    """Where a training is. Terms and history belong to the loop: to be read, not to be changed."""

    epoch: int  # the running one, from 0
    epochs: int
    lr: float
    terms: Mapping[str, float]  # of the last step, the whole loss first
    history: Sequence[Mapping[str, float]]  # a row of means for every epoch that has ended

    def shares(self) -> list[dict[str, float]]:
        """What the label rule did in each past epoch; empty rows in a training without it."""
        other = {"epoch", "lr", *self.terms}
        return [{k: v for k, v in row.items() if k not in other} for row in list(self.history)]

    def __str__(self) -> str:
        """One line: the terms of the step, and what the last epoch did to the labels.

        >>> str(Figures(1, 3, 0.1, {"loss": 2.0}, [{"epoch": 0.0, "loss": 2.5, "keep": 0.75}]))
        'epoch 2/3 loss 2.000 keep 75%'
        """
        parts = [f"epoch {self.epoch + 1}/{self.epochs}"]
        parts += [f"{name} {value:.3f}" for name, value in self.terms.items()]
        last = self.shares()[-1:] or [{}]
        return " ".join([*parts, *(f"{name} {share:.0%}" for name, share in last[0].items())])


# --- one bar --------------------------------------------------------------------------------------


@contextmanager
def silent(_label: str, _total: int | None) -> Iterator[Step]:
    """No progress bar."""
    yield lambda *_args, **_fields: None


def counted(blocks: Iterable[B], step: Step) -> Iterator[B]:
    """Blocks of rows as they pass, counted once whoever takes them has done with them."""
    for block in blocks:
        yield block
        step(len(block))


def duration(seconds: float) -> str:
    """A time in the two units that matter.

    >>> duration(7.4), duration(135), duration(7260)
    ('7 s', '2 min 15 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def pace(done: int, total: int | None, rate: float) -> str:
    """What has been done, how fast it goes, and the time left where the total is known.

    >>> pace(187, 240, 6.8), pace(1200, None, 40.0), pace(0, 240, 0.0)
    ('187 of 240, 6.8/s, 8 s left', '1,200, 40/s', '0 of 240')
    """
    parts = [f"{done:,}" if total is None else f"{done:,} of {total:,}"]
    if rate:
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
    if rate and total is not None:
        parts.append(f"{duration(max(0, total - done) / rate)} left")
    return ", ".join(parts)


@contextmanager
def regular_lines(
    label: str, total: int | None, *, write: Say, clock: Callable[[], float] = time.monotonic
) -> Iterator[Step]:
    """A line every ``INTERVAL`` seconds, for pipes and logs; also where no step is reported for so long."""
    begin = last = clock()
    done, first = 0, (0.0, 0)
    begun, ended = False, threading.Event()

    def line(now: float, figures: Figures | None = None) -> None:
        nonlocal last
        last = now
        since, before = first
        rate = (done - before) / (now - since) if begun and now > since else 0.0
        at = pace(done, total, rate) if done else f"for {duration(now - begin)}"
        write(f"{label}: {at}{f', {figures}' if figures else ''}")

    def step(advance: int = 1, figures: Figures | None = None) -> None:
        nonlocal done, first, begun
        done, now = done + advance, clock()
        if not begun:  # a training that is resumed begins with a jump
            first, begun = (now, done), True
        if now - last >= INTERVAL:
            line(now, figures)

    def watch() -> None:
        while not ended.wait(INTERVAL):
            if (now := clock()) - last >= INTERVAL:
                line(now)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield step
    finally:
        ended.set()
        watcher.join()


def terminal(label: str, total: int | None) -> AbstractContextManager[Step]:
    """Progress on stderr: a bar with count, rate and time left; lines where stderr is no terminal.

    Of several ranks the main one shows it.
    """
    if not is_main_process():
        return silent(label, total)
    if not sys.stderr.isatty():
        return regular_lines(label, total, write=partial(print, file=sys.stderr, flush=True))
    return _drawn_bar(label, total)


@contextmanager
def _drawn_bar(label: str, total: int | None) -> Iterator[Step]:
    """A bar that rich draws on stderr."""
    from rich import progress as parts
    from rich.console import Console

    columns: tuple[str | parts.ProgressColumn, ...] = (  # a string becomes text when it is drawn
        parts.SpinnerColumn(),
        "{task.description}",
        parts.BarColumn(bar_width=30),
        "{task.fields[pace]}",
        parts.TimeElapsedColumn(),
        "[dim]{task.fields[figures]}",
    )
    with parts.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total, pace="", figures="")

        def step(advance: int = 1, figures: Figures | None = None) -> None:
            progress.advance(task, advance)
            at = progress.tasks[task]
            text = pace(int(at.completed), total, at.speed or 0.0)
            progress.update(task, pace=text, figures=figures or at.fields["figures"])

        yield step


# --- a run of many stages -------------------------------------------------------------------------


class Watch:
    """Progress of a run with many stages; this implementation is silent. Used as a context."""

    def bar(self, label: str, total: int | None) -> AbstractContextManager[Step]:
        """Progress of a part of the stage."""
        return silent(label, total)

    def say(self, text: str) -> None:
        """A line of information."""

    def warn(self, text: str) -> None:
        """Something that the reader should look at."""

    def plan(self, stages: Sequence[str]) -> None:
        """The stages to come, in order."""

    def todo(self, lines: Sequence[str]) -> None:
        """What will be done, and why."""

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is drawn while a person is asked."""
        return nullcontext()

    def begin(self, stage: str) -> None:
        """A stage begins."""

    def end(self, stage: str, *, seconds: float | None) -> None:
        """A stage has ended, after so many seconds; None if it was fresh and nothing was done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


SILENT = Watch()


class Lines(Watch):
    """Plain lines; for pipes, logs and dumb terminals, and for commands that do one stage.

    With a plan a line names each stage that begins; without one, a line names each that has ended.

    Args:
        write: Prints a line.
        bar: Shows the progress of a part of a stage.
        stages: Whether lines about stages are printed.
        warnings: Whether warnings are printed.
    """

    def __init__(self, write: Say, bar: Bar = silent, *, stages: bool = True, warnings: bool = True) -> None:
        self._write, self._bar = write, bar
        self._with_stages, self._with_warnings = stages, warnings
        self._stages: list[str] = []

    def bar(self, label: str, total: int | None) -> AbstractContextManager[Step]:
        return self._bar(label, total)

    def say(self, text: str) -> None:
        self._write(text)

    def warn(self, text: str) -> None:
        if self._with_warnings:
            self._write(f"warning: {text}")

    def plan(self, stages: Sequence[str]) -> None:
        self._stages = list(stages)

    def todo(self, lines: Sequence[str]) -> None:
        for line in lines if self._with_stages else ():
            self._write(line)

    def begin(self, stage: str) -> None:
        if self._with_stages and stage in self._stages:
            self._write(f"[{self._stages.index(stage) + 1}/{len(self._stages)}] {stage}")

    def end(self, stage: str, *, seconds: float | None) -> None:
        if self._with_stages and not self._stages:
            state = "fresh, nothing to do" if seconds is None else f"done in {seconds:.0f} s"
            self._write(f"{stage}: {state}")
