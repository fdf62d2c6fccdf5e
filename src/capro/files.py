"""Files that others made: only regular ones are opened; YAML is read without aliases and to a depth limit."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, BinaryIO

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

MAX_NESTING = 40  # levels; settings have two, classes.yaml has two


class PlainLoader(yaml.SafeLoader):
    """Safe values only, no aliases, limited nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(
                None, None, f"the alias *{event.anchor[:80]} is not accepted", event.start_mark
            )
        if self._depth >= MAX_NESTING:
            raise ComposerError(None, None, f"nested more than {MAX_NESTING} levels", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node: a date or number that cannot be is named with its line."""
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # ValueError for month 13, KeyError for `!!bool x`, and others
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:80]!r} is not a valid {kind} ({error})"
            raise ConstructorError(None, None, problem, node.start_mark) from None


def parse_yaml(text: str) -> Any:
    """The values of a document.

    >>> parse_yaml("train: {gamma: 0.4}")
    {'train': {'gamma': 0.4}}
    """
    return yaml.load(text, PlainLoader)


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a document, which know their lines."""
    node: yaml.Node | None = yaml.compose(text, PlainLoader)
    return node


def problem_of(error: yaml.YAMLError) -> tuple[int | None, str]:
    """The line, from 1, and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    wrong = getattr(error, "problem", None) or "a character that YAML does not allow"
    return (mark.line + 1 if mark else None), str(wrong)


KINDS = {  # what a path may be instead of a file
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class NotAFileError(OSError):
    """A path that is there, and is no regular file."""


def require_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a path that is no regular file: before a library opens it by its name."""
    _refuse_others(os.stat(path).st_mode, path)


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """A regular file, to read bytes from; links are followed.

    A pipe that takes the file's place between the look and the opening does not block either.
    """
    require_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb", buffering=buffering)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file."""
    with open_regular(path, buffering=0) as file:
        return file.read()


def _refuse_others(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise NotAFileError(errno.EINVAL, f"is {kind}, not a file", os.fspath(path))
