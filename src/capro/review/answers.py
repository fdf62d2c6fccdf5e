"""The answers that a person can give, each declared once.

`ANSWERS` says what an answer means for labels and how pages and files call it; `COMMANDS` says which key and button
give it. Everything else reads these two tables: the toolbar and its keys, the help, tiles, the page Progress, the log,
exports, and the stages. A new answer is an entry in each, and a row in docs/review.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from capro.errors import ConfigError


@dataclass(frozen=True)
class AnswerKind:
    """What an answer means, and what it is called.

    Attributes:
        drops: Whether the sample leaves the dataset.
        about_content: Whether it says what the picture shows; if it drops as well: none of the classes.
        counted: Its word on the page Progress.
        word: Its word on a tile and in the history; with labels, their names are shown instead.
        choice: The choice that stands for it in Label Studio; with labels, these are the choices.
    """

    drops: bool
    about_content: bool
    counted: str
    word: str = ""
    choice: str = ""

    @property
    def decides(self) -> bool:
        """Whether the method has to follow it."""
        return self.drops or self.about_content


# by the name that the log and files use
ANSWERS = {
    "labels": AnswerKind(drops=False, about_content=True, counted="labelled"),
    "out": AnswerKind(
        drops=True, about_content=True, counted="dropped", word="dropped", choice="(none of these)"
    ),
    "copy": AnswerKind(
        drops=True,
        about_content=False,
        counted="dropped as near duplicates",
        word="dropped: near duplicate",
        choice="(near duplicate)",
    ),
    "unsure": AnswerKind(
        drops=False, about_content=False, counted="not sure", word="not sure", choice="(not sure)"
    ),
}


@dataclass(frozen=True)
class Decision:
    """What a person answered about one sample, and what the page showed then.

    Attributes:
        sample: Its id.
        answer: Key of `ANSWERS`.
        yes: Labels that it has; single-label: that label.
        no: Labels that it does not have, where not all are decided (multi-label).
        whole: Whether every label outside `yes` is decided to be absent.
        anchor: Whether it was picked as an anchor of its class.
        given: Web labels that were shown.
        proposed: The method's labels that were shown; empty: it dropped the sample.
        random: Whether the sample was drawn at random and asked for that reason; not where a near duplicate decided it.
    """

    sample: str
    answer: str
    yes: tuple[str, ...] = ()
    no: tuple[str, ...] = ()
    whole: bool = True
    anchor: bool = False
    given: tuple[str, ...] = ()
    proposed: tuple[str, ...] = ()
    random: bool = False

    @property
    def kind(self) -> AnswerKind:
        """What the answer means."""
        return ANSWERS[self.answer]

    @property
    def words(self) -> str:
        """The decision in words, for tiles and the history.

        >>> Decision("a", "labels", yes=("cat",), anchor=True).words, Decision("a", "unsure").words
        ('cat (anchor)', 'not sure')
        >>> Decision("a", "labels", yes=("cat",), no=("dog",), whole=False).words
        '+ cat, − dog'
        """
        if self.kind.word:
            return self.kind.word
        if not self.whole:
            return ", ".join(
                [*(f"+ {name}" for name in self.yes), *(f"\N{MINUS SIGN} {name}" for name in self.no)]
            )
        return (", ".join(self.yes) or "no label") + (" (anchor)" if self.anchor else "")

    def over(self, before: Decision | None) -> Decision:
        """This decision on top of an earlier one.

        What was shown first stays: once decisions were applied, the method proposes what the person said. So does
        whether it was asked at random: a sample that was first decided for another reason never was.
        Labels that are added or removed one by one change what was decided before.
        """
        if before is None:
            return self
        merged = replace(self, given=before.given, proposed=before.proposed, random=before.random)
        if self.whole or before.answer != "labels":
            return merged
        yes = tuple(name for name in dict.fromkeys(before.yes + self.yes) if name not in self.no)
        no = tuple(name for name in dict.fromkeys(before.no + self.no) if name not in self.yes)
        return replace(merged, yes=yes, no=() if before.whole else no, whole=before.whole)


@dataclass(frozen=True)
class Question:
    """One sample as it was shown to the person who answers.

    Attributes:
        sample: Its id.
        given: Its web labels.
        proposed: The method's labels; empty: it dropped the sample.
        random: Whether it was drawn at random and is asked for that reason.
        multi_label: Whether samples have any number of labels.
        before: What is decided about it already.
        label: The class that the person chose, where the command asks for one.
    """

    sample: str
    given: tuple[str, ...]
    proposed: tuple[str, ...]
    random: bool
    multi_label: bool
    before: Decision | None
    label: str

    def answered(self, answer: str, **more: Any) -> Decision:
        """The decision with this answer."""
        shown: dict[str, Any] = {"given": self.given, "proposed": self.proposed, "random": self.random}
        return Decision(self.sample, answer, **shown, **more)


def _accept(question: Question) -> Decision:
    no_labels_are_right = question.multi_label and not question.given
    answer = "labels" if question.proposed or no_labels_are_right else "out"
    return question.answered(answer, yes=question.proposed)


def _pick_anchor(question: Question) -> Decision:
    labels = question.proposed or question.given
    if question.before is not None and question.before.answer == "labels":
        labels = question.before.yes
    if not labels:
        raise ConfigError(f"{question.sample} has no label", hint="give it one first")
    return question.answered("labels", yes=labels, anchor=True)


@dataclass(frozen=True)
class Command:
    """A way to give an answer.

    Attributes:
        decide: The decision about one sample.
        button: Text of its button in the toolbar; empty: it has a button elsewhere.
        keys: Characters that press the button; the first one is shown.
        help: What it does, for the list of keys.
        asks: The question for a class; empty: it needs none.
        multi_label: Whether it is for multi-label datasets alone.
    """

    decide: Callable[[Question], Decision]
    button: str = ""
    keys: str = ""
    help: str = ""
    asks: str = ""
    multi_label: bool = False


# by the name that requests and the log use
COMMANDS = {
    "accept": Command(_accept, "Accept", "a", help="accept what the method says"),
    "label": Command(
        lambda question: question.answered("labels", yes=(question.label,)),
        "Relabel",
        "r",
        help="another label: type its beginning, Enter",
        asks="Which label is right?",
    ),
    "out": Command(
        lambda question: question.answered("out"), "Drop", "d", help="drop: it shows none of the classes"
    ),
    "unsure": Command(
        lambda question: question.answered("unsure"),
        "Not sure",
        "s",
        help="not sure: decides nothing, is not asked again",
    ),
    "anchor": Command(_pick_anchor, "Anchor", "p", help="make it an anchor of its class"),
    "add": Command(
        lambda question: question.answered("labels", yes=(question.label,), whole=False),
        "Add",
        "+=",
        help="add one label",
        asks="Add which label?",
        multi_label=True,
    ),
    "remove": Command(
        lambda question: question.answered("labels", no=(question.label,), whole=False),
        "Remove",
        "\N{MINUS SIGN}-",
        help="remove one label",
        asks="Remove which label?",
        multi_label=True,
    ),
    "best": Command(lambda question: question.answered("copy")),  # on the page of near duplicates
}


def toolbar(*, multi_label: bool) -> dict[str, Command]:
    """The commands that have a button in the toolbar."""
    return {
        verb: command
        for verb, command in COMMANDS.items()
        if command.button and (multi_label or not command.multi_label)
    }
