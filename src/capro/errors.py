"""Errors that a user can act on. The command line prints `error:` and `hint:` and exits with 2."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class CaproError(Exception):
    """An error that a user can correct: the message says what and where, ``hint`` what to do.

    Examples:
        >>> str(CaproError("labels.csv:3: no 'label' column", hint="name it with --label-column"))
        "labels.csv:3: no 'label' column"
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(readable(message))
        self.hint = readable(hint)


def readable(text: str, *, most: int = 4000) -> str:
    """A text of at most so many characters: of a longer one its begin and its end.

    >>> readable("cat"), readable("x" * 50 + "y", most=20)
    ('cat', 'xxxxxxxxxx ... xxxxy')
    """
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2 - 5) :]}"


class DataError(CaproError):
    """The data cannot be used: a source, a table or a file is wrong, missing or unreadable."""


class ConfigError(CaproError):
    """A setting, an option or an argument is unknown, or has a value that cannot be used."""


class RunError(CaproError):
    """A stage or a file of the run directory is missing or damaged, or the run cannot continue."""


class StoreError(CaproError):
    """An object store or the hub cannot be reached, or refuses the request."""


class RankError(RunError):
    """Another rank failed; the one with the lowest number prints the message."""

    def __init__(self, message: str, *, rank: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rank = rank


def first_line(error: BaseException) -> str:
    """What a foreign error says first, cut to a sentence's length; its name if it says nothing.

    >>> first_line(ValueError("no such key\\nTraceback ...")), first_line(KeyError())
    ('no such key', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def described(error: BaseException) -> str:
    """An error that was not foreseen: its kind, what it says and the line of the program that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {first_line(error)}{place}"


def shortened(value: object) -> str:
    """A value as it is written in Python, cut to a sentence's length.

    >>> shortened("cat"), len(shortened("x" * 1000))
    ("'cat'", 123)
    """
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def first_problem(error: ValidationError) -> str:
    """The first thing that pydantic finds wrong: which part, why, and what was there instead."""
    problem = error.errors()[0]
    part = ".".join(str(key) for key in problem["loc"])[:120]
    message = problem["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]  # a class of ours
    text = f"{message[0].lower()}{message[1:]}, got {shortened(problem['input'])}"
    return f"{part}: {text}" if part else text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion for a misspelt name, or the names there are.

    >>> did_you_mean("lable", ["label", "title"])
    "did you mean 'label'?"
    >>> did_you_mean("x", ["label", "title"])
    'known: label, title'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(names) if names else ""
