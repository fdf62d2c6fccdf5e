"""`capro review`: a person decides."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from capro.cli.options import OptionalPath, RunPath, local_only, open_run
from capro.cli.program import app, note
from capro.errors import ConfigError
from capro.wording import many

if TYPE_CHECKING:
    from capro.run.directory import Run


@app.command()
def review(
    run: RunPath,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0: any free one.")
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to serve the page at; with another one than 127.0.0.1 other machines can reach it.",
        ),
    ] = "127.0.0.1",
    export: Annotated[
        OptionalPath,
        typer.Option(
            "--export",
            callback=local_only,
            help="Write the decisions to a file: .parquet, .csv or .json (Label Studio).",
        ),
    ] = None,
    import_: Annotated[
        OptionalPath,
        typer.Option(
            "--import", callback=local_only, help="Read decisions from a file of one of these kinds."
        ),
    ] = None,
) -> None:
    """Decide doubtful samples yourself.

    Serves a web page on this machine; `capro run --run RUN` then uses your decisions.
    """
    from capro.review.exchange import export_decisions, import_decisions
    from capro.review.stored_log import kept_in_store

    opened = open_run(run)
    if export is not None and import_ is not None:
        raise ConfigError("--export and --import at once", hint="give one of them")
    if import_ is not None:
        with kept_in_store(opened):
            taken = import_decisions(opened, import_)
        print(f"{many(taken, 'decision')} taken from {import_}")
        note(f"`capro run --run {run}` uses them")
    elif export is not None:
        written = export_decisions(opened, export, warn=lambda text: note(f"warning: {text}"))
        print(f"{many(written, 'decision')} in {export}")
    else:
        with kept_in_store(opened):
            _serve(opened, host, port, open_)


def _serve(opened: Run, host: str, port: int, browser: bool) -> None:
    import webbrowser

    from capro.review.serving import Review, only_here

    app = Review(opened, host=host, port=port, used=lambda link: note(f"opened; for another browser: {link}"))
    if not only_here(host):
        note(
            f"warning: {host} can be reached by other machines: everybody with a link sees pictures and can decide"
        )
    link = app.link
    print(link, flush=True)
    note("each link works once; Ctrl-C ends the review, every decision is saved at once")
    if browser:
        webbrowser.open(link)
    with suppress(KeyboardInterrupt):  # how a person ends it
        app.serve()
    app.stop()
    said = app.desk.progress()
    note(f"{many(said['decided'], 'sample')} decided; `capro run --run {opened.place}` uses them")
