"""YAML that others wrote: without aliases, nested to a limit; whatever is wrong is a ``yaml.YAMLError``.

An alias bomb is a file of some lines that stands for more values than memory holds.
"""

from __future__ import annotations

from typing import Any

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
    found: yaml.Node | None = yaml.compose(text, PlainLoader)
    return found


def problem_of(error: yaml.YAMLError) -> tuple[int | None, str]:
    """The line, from 1, and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    wrong = getattr(error, "problem", None) or "a character that YAML does not allow"
    return (mark.line + 1 if mark else None), str(wrong)
