"""The program: entry point, errors as messages and exit codes, and the list of commands.

Data goes to stdout, logs and progress to stderr. A mistake of the user's prints ``error:`` and ``hint:``
and exits with 2; an interruption exits with 130.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from capro.errors import CaproError, ConfigError, RankError
from capro.pipeline.files import explained
from capro.pipeline.ranks import is_main_process, leave, process_count, process_rank

if TYPE_CHECKING:
    from capro.pipeline.plan import Agree
    from capro.pipeline.progress import Watch


# transformers reports and draws bars while it loads; ours is the one progress display
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
# threads that wait for each other sleep: spinning ones would starve whatever else runs, and then each other
POLITE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


class Terminated(BaseException):
    """A launcher ends this process, as it does with all when one has ended."""


class InOrder(TyperGroup):
    """Lists commands in the order in which they are used: the stages', then what one does with a run."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Names of the commands; ``config`` stands last."""
        from capro.stages import PLAN

        first = [name for name in ("demo", "run", *PLAN.names) if name in self.commands]
        rest = [name for name in self.commands if name not in {*first, "config"}]
        return [*first, *rest, "config"]


app = typer.Typer(
    name="capro",
    cls=InOrder,
    help="From noisy web images and texts to a classifier, a cleaned dataset and a report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would double the time of --help
)
config_app = typer.Typer(help="Settings and presets.", no_args_is_help=True)
classes_app = typer.Typer(help="What each class means.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(classes_app, name="classes")


def main() -> NoReturn:
    """Entry point: errors become messages and exit codes, never tracebacks."""
    try:
        _main()
    except SystemExit as end:
        if process_count() > 1:
            leave(end.code if isinstance(end.code, int) else 0)
        raise


def _main() -> NoReturn:
    for name, value in {**QUIET, **POLITE}.items():
        os.environ.setdefault(name, value)
    if not is_main_process():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - of several ranks one prints results
    if process_count() > 1:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(standalone_mode=False, prog_name="capro")  # also as `python -m capro`
    except RankError:  # the rank that failed prints the message
        raise SystemExit(2) from None
    except CaproError as error:
        fail(str(error), error.hint)
    except Terminated:
        fail(
            "ended by the launcher, as when another process of this run has ended",
            "give the same command again: it continues where it stopped",
            code=128 + signal.SIGTERM,
        )
    except (KeyboardInterrupt, typer.Abort) as error:
        # of a file that ends too early, which the parser calls an abort
        if isinstance(error.__cause__, EOFError):
            unexpected(error.__cause__)
        code = 130
    except BrokenPipeError:  # `capro ... | head`: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own, in every version of typer
            usage(error)
        if explanation := explained(error):
            fail(str(explanation), explanation.hint)
        unexpected(error)
    if code == 130:
        fail("interrupted", "give the same command again: it continues where it stopped", code=130)
    raise SystemExit(code if isinstance(code, int) else 0)


def _terminated(*_: Any) -> NoReturn:
    raise Terminated  # unwinds: temporary files go


def fail(message: str, hint: str = "", *, code: int = 2) -> NoReturn:
    """Print an error and leave."""
    who = "" if is_main_process() else f"rank {process_rank()}: "
    print(f"error: {who}{message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    if process_count() > 1:
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # on the way out: nothing more to say
    raise SystemExit(code)


def unexpected(error: BaseException) -> NoReturn:
    """A bug of ours."""
    if os.environ.get("CAPRO_DEBUG"):
        traceback.print_exception(error)
    fail(
        f"unexpected {type(error).__name__}: {error}",
        "this is a bug in capro: give the command again with CAPRO_DEBUG=1 set, and report what it prints",
        code=1,
    )


def usage(error: Any) -> NoReturn:
    """A wrong option or argument."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        raise SystemExit(2)
    command = context.command_path if context is not None else "capro"
    message = " ".join(error.format_message().split()).rstrip(".")
    fail(message[:1].lower() + message[1:], f"`{command} --help` lists its arguments and options")


def note(text: str) -> None:
    """A line for the reader, on stderr; of several ranks the main one writes it."""
    if is_main_process():
        print(text, file=sys.stderr)


def print_result(result: Any, as_json: bool, write: Callable[[Any], None]) -> None:
    """The result of a command, to stdout: as JSON, or written for people."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        write(result)


def agreement(yes: bool) -> Agree | None:
    """What asks before long work, or what a person decided, is replaced; nothing with ``--yes``."""
    return None if yes else lambda lines: ask(lines, "replace", "replaced")


def ask(lines: Sequence[str], verb: str, done: str) -> None:
    """Show what would be done, and ask; after "no" the command ends with exit code 1."""
    note("\n".join(lines))
    if not sys.stdin.isatty():
        raise ConfigError(
            f"cannot ask whether to {verb} this: stdin is not a terminal",
            hint="add --yes if that is what you want",
        )
    if not typer.confirm(f"{verb} this?", default=False, err=True):
        note(f"nothing was {done}")
        raise typer.Exit(1)


def plain_lines(*, stages: bool = True, warnings: bool = True) -> Watch:
    """Progress of a command that does one stage or two: plain lines and a bar."""
    from capro.pipeline.progress import Lines, terminal

    return Lines(note, terminal, stages=stages, warnings=warnings)


def live(title: str) -> Watch:
    """Progress of a run of many stages: the live view on a terminal, else plain lines."""
    from capro.cli import live_view

    return live_view.LiveView(title) if is_main_process() and live_view.possible() else plain_lines()


def show_version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        from capro.environment import version_line

        print(version_line())
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions of capro, Python and the main packages.",
        ),
    ] = False,
) -> None:
    """From noisy web images and texts to a classifier, a cleaned dataset and a report."""
