"""The live view: drawn at fixed sizes, over a whole run, and interrupted in a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from capro.cli.live_view import LiveView
from capro.pipeline.progress import Figures, Lines
from capro.pipeline.run import Run
from capro.stages import PLAN, classes, embed, match, run_all
from tests import tiny

STAGES = ["scan", "classes", "pixels", "pretrain", "embed", "match", "train", "clean", "evaluate"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def screen(width: int, height: int, **options: object) -> Console:
    chosen = {"force_terminal": True, "color_system": "truecolor", "encoding": "utf-8", **options}
    encoding = str(chosen.pop("encoding"))
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, height=height, record=True, **chosen)  # type: ignore[arg-type]


def drawn(view: LiveView, console: Console) -> list[str]:
    console.print(view)
    return console.export_text().splitlines()


def history(epochs: int) -> list[dict[str, float]]:
    return [
        {"epoch": float(e), "lr": 0.1, "loss": 4 - e, "cls": 2 - e, "keep": 1 - e / 10, "drop": e / 10}
        for e in range(epochs)
    ]


@pytest.fixture
def training():
    """Three stages done, one of them fresh; the fourth trains, in its third epoch of five."""
    clock, console = Clock(), screen(100, 40)
    made = LiveView("capro run runs/x", console=console, clock=clock)
    made.plan(STAGES)
    for name, seconds in (("scan", 65.0), ("classes", 0.0), ("pixels", 3.0)):
        made.begin(name)
        clock.now += seconds
        made.end(name, seconds=None if name == "classes" else seconds)
    made.begin("pretrain")
    with made.bar("step 1: web labels", 100) as step:
        step(40)  # resumed: not part of the rate
        clock.now += 5.0
        figures = Figures(2, 5, 0.0123, {"loss": 2.5, "cls": 0.00004}, history(2))
        step(10, figures=figures)
        yield made, step, clock


def test_it_shows_stages_progress_losses_and_labels(training):
    made, _, _ = training
    text = "\n".join(drawn(made, screen(100, 40)))
    for part in (
        "✓ scan 1 min 05 s", "✓ classes fresh", "✓ pixels 3 s",
        "▶ pretrain 5 s", "· embed", "step 1: web labels", "50%",
        "50 of 100, 2/s, 25 s left", "epoch 3 of 5, learning rate 0.012",
        "loss     2.500 █▁", "cls      4e-05 █▁", "keep       90% █▇", "drop       10% ▁▂",
        "capro run runs/x, 1 min 13 s",
    ):  # fmt: skip
        assert part in text, part


def test_labels_stay_when_the_next_stage_begins(training):
    made, step, _ = training
    step(50)
    made.end("pretrain", seconds=5.0)
    drawn(made, screen(100, 40))
    made.begin("embed")
    with made.bar("encoding texts", None) as count:
        count(7)
        text = "\n".join(drawn(made, screen(100, 40)))
    assert "encoding texts" in text
    assert "keep       90%" in text
    assert "epoch" not in text.replace("by epoch", "")  # those of another stage would mislead


@pytest.mark.parametrize("width", [30, 60, 77, 78, 100, 200])
@pytest.mark.parametrize("height", [2, 3, 6, 10, 16, 24])
def test_it_fits_every_terminal(training, width, height):
    made, _, _ = training
    for number in range(5):
        made.warn(f"warning {number} " + "<b>[red]猫 " * 20)
    lines = drawn(made, screen(width, height))
    assert len(lines) < height  # the line below is the cursor's
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    assert "pretrain" in text
    if height >= 6:
        assert "50 of 100, 2/s" in text
    if height >= 16:
        assert "▶ pretrain" in text
        assert "and 2 more" in text


def test_without_colour_and_without_unicode(training):
    made, _, _ = training
    console = screen(100, 40, encoding="ascii", no_color=True)
    text = "\n".join(drawn(made, console))
    assert text.isascii()
    assert "+ scan" in text
    assert "= classes" in text
    assert "> pretrain" in text
    assert "keep       90%" in text


def test_a_step_stores_and_draws_nothing(training):
    made, step, _ = training
    console = made._console
    console.file = io.StringIO()
    for _ in range(100):
        step(0)
    assert console.file.getvalue() == ""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tiny.write_data(tmp_path_factory.mktemp("data"), per_class=3)
    with (found / "classes.yaml").open("a") as file:
        file.write("- {name: nobody, definition: a class without any sample}\n")
    return found


@pytest.fixture
def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for module in (classes, embed, match):
        monkeypatch.setattr(module, "load_text_encoder", lambda *_, **__: tiny.WordEncoder())
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    return Run.create(tmp_path / "run", tiny.settings(data, "net.mode=frozen", "train.epochs=2"))


def test_a_run_shows_its_stages_figures_and_warnings(run: Run) -> None:
    seen: list[Figures] = []

    class Watching(LiveView):
        def _note(self, figures: Figures | None) -> None:
            super()._note(figures)
            if figures is not None:
                seen.append(figures)

    said: list[str] = []
    console = screen(100, 40)
    with Watching("capro run", console=console) as watch:
        run_all(run, watch=watch)
    text = console.export_text()
    last = text[text.rindex("✓ scan") :]
    names = [stage.name for stage in PLAN.of(run.settings)]
    assert [word for word in last.split() if word.isalpha() and len(word) > 3] == names
    assert "warning: 1 class without any training sample: nobody" in text
    assert "warning: 1 class without any sample, and so without anchors: nobody" in text
    trained = [f for f in seen if f.shares() and f.shares()[-1]]
    assert {"anchor", "keep", "relabel", "drop"} == set(trained[-1].shares()[-1])
    assert trained[-1].epochs == run.settings.train.epochs

    with Watching("capro run", console=(again := screen(100, 40))) as watch:
        run_all(run, watch=watch)
    text = again.export_text()
    assert text[text.rindex("✓ scan") :].count("fresh") == len(names)

    run_all(run, watch=Lines(said.append))
    assert [line for line in said if line.startswith("[")][-1] == f"[{len(names)}/{len(names)}] evaluate"
    assert "warning: 1 class without any training sample: nobody" in said


def test_an_error_leaves_the_warnings_and_no_list_of_stages() -> None:
    console = screen(80, 24)

    def interrupted() -> None:
        with LiveView("capro run", console=console) as watch:
            watch.plan(["scan"])
            watch.begin("scan")
            watch.warn("look at this")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    after = console.export_text()
    assert after[after.rindex("warning: look at this") :].splitlines() == ["warning: look at this"]


PROGRAM = """
import sys
from capro.cli import main
from capro.stages import classes, embed, match
from tests import tiny
for module in (classes, embed, match):
    module.load_text_encoder = lambda *_, **__: tiny.WordEncoder()
main()
"""


def test_ctrl_c_in_a_terminal_leaves_it_clean(data: Path, tmp_path: Path) -> None:
    options = [f"data.source={data}", f"data.classes={data / 'classes.yaml'}", *tiny.FAST]
    options += ["pretrain.epochs=3000", "net.mode=frozen"]
    command = [sys.executable, "-c", PROGRAM, "run", "--run", str(tmp_path / "run")]
    command += [part for option in options for part in ("--set", option)]
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        os.chdir(Path(__file__).parents[2])
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    output, sent, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            output += os.read(terminal, 65536)
        except OSError:  # the other side has closed it
            break
        if b"epoch" in output and not sent:
            os.write(terminal, b"\x03")
            sent = True
    else:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    text = output.decode()
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is visible
    assert text.splitlines()[-2:] == [
        "error: interrupted",
        "hint: give the same command again: it continues where it stopped",
    ]
    assert "▶ pretrain" in text


WIDE = """
import time
from capro.cli.live_view import LiveView
with LiveView("capro run runs/x") as view:
    view.plan(["scan"])
    view.begin("scan")
    with view.bar("pictures", 10) as step:
        step(5)
        time.sleep(1)
"""


def test_a_wide_terminal_is_used_whatever_was_exported() -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        os.execvpe(sys.executable, [sys.executable, "-c", WIDE], environment)
    output = b""
    with contextlib.suppress(OSError):  # the other side has closed it
        while part := os.read(terminal, 65536):
            output += part
    os.waitpid(pid, 0)
    lines = [Text.from_ansi(line).plain for line in output.decode().splitlines()]
    assert max(map(cell_len, lines)) == 160


def test_without_a_total_no_time_is_left(training):
    made, _, clock = training
    with made.bar("graph", None) as step:
        for _ in range(3):
            clock.now += 10
            step(5)
        text = "\n".join(drawn(made, screen(100, 40)))
    assert "15, " in text
    assert "left" not in text
