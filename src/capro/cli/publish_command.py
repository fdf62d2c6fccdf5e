"""The command that publishes: it shows what becomes public, and asks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from capro.cli.options import AsJson
from capro.cli.program import app, note, print_result
from capro.errors import ConfigError
from capro.places import local_path


@app.command()
def push(
    folder: Annotated[
        str, typer.Argument(help="Made by `capro export-model`, or by `capro export --to hf`.")
    ],
    repo: Annotated[
        str,
        typer.Argument(help="Repository on the Hugging Face hub: OWNER/NAME, or NAME for one of your own."),
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private: only its owner sees it.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; what becomes public is still printed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a model or a cleaned data set on the Hugging Face hub.

    It shows what becomes public and what changes in a repository that exists, and asks. After "no" the exit code is 1.
    """
    from capro.export.hub_repository import push as publish

    def agree(lines: Sequence[str]) -> bool:
        note("\n".join(lines))
        if not yes and not sys.stdin.isatty():
            raise ConfigError(
                "there is no terminal to ask at", hint="add --yes if that is what you want to publish"
            )
        agreed = yes or typer.confirm("publish this?", default=False, err=True)
        if agreed:
            note("uploading")
        return agreed

    found = publish(local_path(folder, "FOLDER"), repo, private=private, agree=agree)
    if found is None:
        note("nothing was published")
        raise typer.Exit(1)
    if not (found["added"] or found["replaced"] or found["removed"]):
        note("the repository has these files already; nothing was uploaded")
    print_result(found, as_json, lambda found: print(found["url"]))
