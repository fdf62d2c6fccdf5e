"""The live view of `capro run`: stages, progress, losses, labels by epoch and warnings, on stderr.

Stages only store numbers; a thread draws them ``REFRESH`` times a second. In a low terminal parts are left out.
The cursor stays visible: a run that is killed, or stopped with
Ctrl-Z, cannot leave a terminal without one.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from capro.pipeline.progress import Figures, Step, Watch, duration, pace

REFRESH = 2  # per second; drawing takes about 6 ms
WINDOW = 20.0  # seconds over which the rate is taken
WARNINGS = 3  # shown at a time; all are printed at the end
VERDICT_COLOURS = {
    "anchor": "cyan", "keep": "green", "relabel": "yellow", "add": "yellow",
    "remove": "magenta", "drop": "red",
}  # fmt: skip
STATES = {  # style, mark, mark where there is only ASCII
    "to come": ("dim", "·", "."),
    "running": ("bold", "▶", ">"),
    "done": ("green", "✓", "+"),
    "fresh": ("cyan", "✓", "="),
}
SPARKS = "▁▂▃▄▅▆▇█"


def possible() -> bool:
    """Whether stderr is a terminal that can be drawn on."""
    return sys.stderr.isatty() and Console(stderr=True).is_interactive


# --- numbers as text ------------------------------------------------------------------------------


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """A bar an eighth to eight eighths high for each value; half as high where all are the same.

    >>> sparkline([0.0, 0.5, 1.0], 0.0, 1.0), sparkline([2.0, 2.0], 2.0, 2.0)
    ('▁▅█', '▅▅')
    """
    span = high - low
    heights = [(value - low) / span if span > 0 else 0.5 for value in values]
    return "".join(SPARKS[round(7 * height)] for height in heights)


def amount(value: float) -> str:
    """A loss or rate in at most six characters.

    >>> amount(0.01234), amount(123.4), amount(3.21e-05)
    ('0.012', '123.4', '3e-05')
    """
    if value == 0 or 0.001 <= abs(value) < 100:
        return f"{value:.3f}"
    return f"{value:.1f}" if 100 <= abs(value) < 1000 else f"{value:.0e}"


# --- what is known --------------------------------------------------------------------------------


@dataclass
class _Stage:
    name: str
    state: str = "to come"
    began: float = 0.0
    seconds: float = 0.0

    def line(self, now: float, *, plain: bool) -> Text:
        """Its mark, its name, and how long it has taken."""
        style, *marks = STATES[self.state]
        seconds = now - self.began if self.state == "running" else self.seconds
        spent = {"to come": "", "fresh": " fresh"}.get(self.state, f" {duration(seconds)}")
        return Text(f"{marks[plain]} {self.name}{spent}", style)


@dataclass
class _Work:
    """A bar: what has been done, and when how much had been."""

    label: str
    total: int | None
    done: int = 0
    figures: Figures | None = None
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now: float) -> float:
        """Steps a second over the last ``WINDOW`` seconds."""
        self.seen.append((now, self.done))
        while len(self.seen) > 2 and now - self.seen[0][0] > WINDOW:
            self.seen.popleft()
        then, done = self.seen[0]
        return (self.done - done) / (now - then) if now > then else 0.0


class LiveView(Watch):
    """Draws a run while the context lasts; then leaves the warnings and the times of the stages."""

    def __init__(
        self, title: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._clock = title, clock
        # an exported COLUMNS or LINES may be that of another terminal: the terminal itself is asked
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._console = console or Console(stderr=True, highlight=False, _environ=environ)
        self._began = clock()
        self._stages: list[_Stage] = []
        self._works: list[_Work] = []  # the last is the innermost
        self._figures: Figures | None = None  # of the running stage's last training
        self._labels: list[dict[str, float]] = []  # by epoch, of the last training with the rule
        self._warnings: list[str] = []
        self._live = Live(
            self,
            console=self._console,
            refresh_per_second=REFRESH,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.start()
        self._console.show_cursor(True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        for text in self._warnings:
            self._console.print(Text(f"warning: {text}", "yellow"), soft_wrap=True)
        if not any(error):  # what stays of a run that ended well: the time of each stage
            lines = self._in_lines(0.0, self._console.width, plain=self._console.options.ascii_only)
            self._console.print(*lines, sep="\n")

    # --- what happens -----------------------------------------------------------------------------

    def plan(self, stages: Sequence[str]) -> None:
        self._stages = [_Stage(name) for name in stages]

    def todo(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.say(line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._live.stop()
        yield
        self._live.start()

    def begin(self, stage: str) -> None:
        self._figures = None
        at = self._stage(stage)
        at.state, at.began = "running", self._clock()

    def end(self, stage: str, *, seconds: float | None) -> None:
        at = self._stage(stage)
        at.state, at.seconds = "fresh" if seconds is None else "done", self._clock() - at.began

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    @contextmanager
    def bar(self, label: str, total: int | None) -> Iterator[Step]:
        work = _Work(label, total)
        self._works.append(work)

        def step(advance: int = 1, figures: Figures | None = None) -> None:
            work.done += advance
            if not work.seen:  # a training that is resumed begins with a jump: not part of the rate
                work.seen.append((self._clock(), work.done))
            if figures is not None:
                work.figures = figures

        try:
            yield step
        finally:
            self._note(work.figures)
            self._works.remove(work)

    def _stage(self, name: str) -> _Stage:
        return next(each for each in self._stages if each.name == name)

    def _note(self, figures: Figures | None) -> None:
        """Keep the newest figures; what step 2 did to the labels stays to the end of the run."""
        if figures is None:
            return
        self._figures = figures
        shares = [row for row in figures.shares() if row]
        if shares:
            self._labels = shares

    # --- drawing ----------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Everything where it fits; in a low terminal figures go first, then the list of stages."""
        now, width, plain = self._clock(), options.max_width, options.ascii_only
        if self._works:
            self._note(self._works[-1].figures)
        room = max(1, console.height - 1)
        title = Text(f"{self._title}, {duration(now - self._began)}", "dim")
        stages, warnings = [title, *self._in_lines(now, width, plain=plain)], self._warned()
        work, figures = self._work(now, width), self._training(width, plain=plain)
        if len(stages) + len(work) + len(figures) + len(warnings) > room:
            figures = figures[:1]
        if len(stages) + len(work) + len(figures) + len(warnings) > room:
            stages, warnings = [self._position(now)], warnings[-1:]
        for line in [*stages, *work, *figures, *warnings][:room]:
            yield from console.render(line, options.update(height=1, highlight=False, no_wrap=True))

    def _in_lines(self, now: float, width: int, *, plain: bool) -> list[Text]:
        """The stages one after another, in as many lines as they need."""
        lines = [Text()]
        for each in self._stages:
            words = each.line(now, plain=plain)
            if lines[-1] and len(lines[-1]) + 2 + len(words) > width:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append(words)
        return lines

    def _position(self, now: float) -> Text:
        """The running stage in one short line."""
        running = next((each for each in self._stages if each.state == "running"), None)
        if running is None:
            return Text(self._title)
        number = f"[{self._stages.index(running) + 1}/{len(self._stages)}]"
        return Text(f"{number} {running.name}, {duration(now - running.began)}")

    def _work(self, now: float, width: int) -> list[RenderableType]:
        """The innermost bar: its name, the bar, and how fast it goes."""
        if not self._works:
            return []
        work = self._works[-1]
        share = f" {work.done / work.total:4.0%}" if work.total else ""
        bar = ProgressBar(
            total=work.total,
            completed=work.done,
            width=width - len(share),
            pulse=work.total is None,
            complete_style="green",
            finished_style="green",
        )
        line = Table.grid()
        line.add_row(bar, share)
        pace_line = Text(pace(work.done, work.total, work.rate(now)), "dim")
        return [Text(work.label, "bold"), pace_line, line]

    def _training(self, width: int, *, plain: bool) -> list[RenderableType]:
        """Epoch and learning rate; then loss terms, and labels, by epoch."""
        figures, lines = self._figures, list[RenderableType]()
        if figures is not None:
            where = f"epoch {figures.epoch + 1} of {figures.epochs}, learning rate {amount(figures.lr)}"
            lines.append(Text(where))
            for name, value in figures.terms.items():
                past = [row[name] for row in list(figures.history) if name in row]
                sparks = sparkline(past, min(past, default=0.0), max(past, default=1.0))
                lines.append(_series(name, amount(value), "" if plain else sparks, "blue", width))
        if self._labels:
            top = max(max(row.values()) for row in self._labels)
            for name, share in self._labels[-1].items():
                sparks = sparkline([row[name] for row in self._labels], 0.0, top)
                colour = VERDICT_COLOURS.get(name, "white")
                lines.append(_series(name, f"{share:.0%}", "" if plain else sparks, colour, width))
        return lines

    def _warned(self) -> list[RenderableType]:
        """The last warnings, and how many there are besides."""
        texts = [f"! {' '.join(text.split())}" for text in self._warnings[-WARNINGS:]]
        if len(self._warnings) > WARNINGS:
            texts.append(f"! and {len(self._warnings) - WARNINGS} more, printed at the end")
        return [Text(text, "yellow", overflow="ellipsis") for text in texts]


def _series(name: str, value: str, sparks: str, colour: str, width: int) -> Text:
    """A name, its value now, and a bar for each of the last epochs."""
    line = Text(f"{name:<8}{value:>6} ")
    return line.append(sparks[-max(1, width - len(line)) :], colour)
