"""The live view of `capro run`: stages, progress, losses, labels by epoch and warnings, on stderr.

Stages only store numbers; a thread draws them ``REFRESH`` times a second. What is drawn adapts to the
size of the terminal: stages beside the figures where it is wide, in a line where it is narrow, and
parts are left out where it is low. The cursor stays visible: a run that is killed, or stopped with
Ctrl-Z, cannot leave a terminal without one.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from capro.pipeline.progress import Figures, Step, Watch, duration, pace

REFRESH = 2  # per second; drawing takes about 6 ms
WIDE = 78  # columns from which stages stand beside the figures
STAGES_WIDTH = 26
TRAINING_HEIGHT = 13  # lines that a training needs: panels are never lower, so that nothing jumps
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

    def parts(self, now: float, *, plain: bool) -> tuple[Text, Text]:
        """Its mark with its name, and how long it has taken."""
        style, *marks = STATES[self.state]
        seconds = now - self.began if self.state == "running" else self.seconds
        spent = {"to come": "", "fresh": "fresh"}.get(self.state, duration(seconds))
        return Text(f"{marks[plain]} {self.name}", style), Text(spent, style)


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

    @property
    def _running(self) -> _Stage | None:
        return next((each for each in self._stages if each.state == "running"), None)

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
        """The first arrangement that fits; the last one always does, cut at the bottom."""
        room = max(1, console.height - 1)
        options = options.update(height=None, highlight=False, no_wrap=True)
        lines: list[list[Segment]] = []
        for arrangement in self._arrangements(options):
            lines = console.render_lines(arrangement, options, pad=False)
            if len(lines) <= room:
                break
        for line in lines[:room]:
            yield from line
            yield Segment.line()

    def _arrangements(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Ways to draw, the largest first."""
        now, width, plain = self._clock(), options.max_width, options.ascii_only
        if self._works:
            self._note(self._works[-1].figures)
        title = Text(f"{self._title}, {duration(now - self._began)}", "default")
        warnings = self._warned()
        if width >= WIDE:
            yield Group(self._panels(now, width, title, plain=plain), *warnings)
        work, figures = self._work(now, width), self._training(width, plain=plain)
        stages = self._in_lines(now, width, plain=plain)
        yield Group(Rule(title, style="dim", align="left"), *stages, *work, *figures, *warnings)
        yield Group(*stages, *work, *figures[:1], *warnings)
        position = self._position(now)
        yield Group(position, *work, *figures[:1], *warnings[-1:])
        yield Group(position, *work[1:])

    def _panels(self, now: float, width: int, title: Text, *, plain: bool) -> RenderableType:
        """The stages in a panel, and beside them the running one."""
        inner = width - STAGES_WIDTH - 4
        stages = _grid([each.parts(now, plain=plain) for each in self._stages], (12, 10), right=True)
        work = Group(*self._work(now, inner), *self._training(inner, plain=plain))
        height = 2 + max(len(self._stages), TRAINING_HEIGHT)
        left = Panel(stages, title="stages", title_align="left", border_style="dim", height=height)
        right = Panel(
            work,
            title=Text(self._running.name if self._running else "", "bold"),
            title_align="left",
            subtitle=title,
            subtitle_align="right",
            border_style="dim",
            height=height,
        )
        return _grid([(left, right)], (STAGES_WIDTH, width - STAGES_WIDTH))

    def _in_lines(self, now: float, width: int, *, plain: bool) -> list[Text]:
        """The stages one after another, in as many lines as they need."""
        lines = [Text()]
        for each in self._stages:
            words = Text(" ").join(part for part in each.parts(now, plain=plain) if part)
            if lines[-1] and len(lines[-1]) + 2 + len(words) > width:
                lines.append(Text())
            lines[-1].append("  " if lines[-1] else "").append(words)
        return lines

    def _position(self, now: float) -> Text:
        """The running stage in one short line."""
        running = self._running
        if running is None:
            return Text(self._title, overflow="ellipsis")
        number = f"[{self._stages.index(running) + 1}/{len(self._stages)}]"
        return Text(f"{number} {running.name}, {duration(now - running.began)}", overflow="ellipsis")

    def _work(self, now: float, width: int) -> list[RenderableType]:
        """The innermost bar: its name, the bar, and how fast it goes."""
        if not self._works:
            return [Text("working" if self._running else "", "dim"), Text(), Text()]
        work = self._works[-1]
        text = pace(work.done, work.total, work.rate(now))
        bar = ProgressBar(
            total=work.total,
            completed=work.done,
            pulse=work.total is None,
            complete_style="green",
            finished_style="green",
        )
        share = f"{work.done / work.total:.0%}" if work.total else ""
        return [
            Text(work.label, "bold", overflow="ellipsis"),
            _grid([(bar, share)], (width - 5, 5), right=True),
            Text(text, "dim", overflow="ellipsis"),
        ]

    def _training(self, width: int, *, plain: bool) -> list[RenderableType]:
        """Epoch and learning rate; loss terms and labels by epoch, side by side."""
        found, half = self._figures, (width - 2) // 2
        made: list[RenderableType] = []
        losses: list[Text] = []
        labels: list[Text] = []
        if found is not None:
            where = f"epoch {found.epoch + 1} of {found.epochs}, learning rate {amount(found.lr)}"
            made.append(Text(where, overflow="ellipsis"))
            for name, value in found.terms.items():
                past = [row[name] for row in list(found.history) if name in row]
                sparks = sparkline(past, min(past, default=0.0), max(past, default=1.0))
                losses.append(_series(name, amount(value), "" if plain else sparks, "blue", half))
        if self._labels:
            top = max(max(row.values()) for row in self._labels)
            for name, share in self._labels[-1].items():
                sparks = sparkline([row[name] for row in self._labels], 0.0, top)
                colour = VERDICT_COLOURS.get(name, "white")
                labels.append(_series(name, f"{share:.0%}", "" if plain else sparks, colour, half))
        if not losses and not labels:
            return made
        heads = ("loss, and by epoch" if losses else "", "labels, by epoch" if labels else "")
        rows = [[Text(head, "dim") for head in heads], *zip_longest(losses, labels, fillvalue=Text())]
        return [*made, Text(), _grid(rows, (half, half), gap=2)]

    def _warned(self) -> list[RenderableType]:
        """The last warnings, and how many there are besides."""
        shown = [f"! {' '.join(text.split())}" for text in self._warnings[-WARNINGS:]]
        if len(self._warnings) > WARNINGS:
            shown.append(f"! and {len(self._warnings) - WARNINGS} more, printed at the end")
        return [Text(text, "yellow", overflow="ellipsis") for text in shown]


def _grid(
    rows: Iterable[Sequence[RenderableType]], widths: Sequence[int], *, right: bool = False, gap: int = 0
) -> Table:
    """Columns of fixed widths without lines; ``right``: the last one is right-aligned."""
    made = Table.grid(padding=(0, gap, 0, 0))
    for number, width in enumerate(widths, start=1):
        made.add_column(width=width, justify="right" if right and number == len(widths) else "left")
    for row in rows:
        made.add_row(*row)
    return made


def _series(name: str, value: str, sparks: str, colour: str, width: int) -> Text:
    """A name, its value now, and a bar for each of the last epochs."""
    made = Text(f"{name:<8}{value:>6} ", no_wrap=True, overflow="crop")
    return made.append(sparks[-max(0, width - len(made)) :] if width > len(made) else "", colour)
