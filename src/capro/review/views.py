"""What is shown, and in which order: a view is the filters of an address, and its pages go by key.

A page begins after a given sample in the order of the view, so that decisions made meanwhile, here or in
another browser, neither skip nor repeat a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from capro.data.labels import Labels
from capro.errors import ConfigError, did_you_mean
from capro.results.store import VERDICT_NAMES
from capro.review.pictures import similarity
from capro.review.queue import ReviewTable
from capro.wording import plain

SIZES = (20, 60, 100, 200)
ORDERS = {
    "gain": "most valuable first",
    "score": "lowest score first",
    "like": "most similar first",
    "group": "near duplicates together",
    "row": "as in the data",
}
STATES = {"open": "not decided", "decided": "decided", "all": "all"}
DIGITS = 12  # of a number in an address
RECENT = 8  # views whose order is remembered
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """Filters and order, as the address has them; None is no filter.

    Attributes:
        order: Key of `ORDERS`.
        label: Class among the given or the method's labels.
        given: Class among the given labels.
        after: Class among the method's labels; "-" for samples that it dropped.
        verdict: What the method did.
        low: Least score.
        high: Highest score.
        copies: Only near duplicates: "any", or the number of a group.
        text: Words that the texts contain.
        like: A row: pictures similar to it.
        state: Key of `STATES`.
        size: Pictures on a page.
    """

    order: str = "gain"
    label: str | None = None
    given: str | None = None
    after: str | None = None
    verdict: str | None = None
    low: float | None = None
    high: float | None = None
    copies: str | None = None
    text: str | None = None
    like: int | None = None
    state: str = "open"
    size: int = 60

    @staticmethod
    def parse(query: Mapping[str, str], table: ReviewTable) -> View:
        """The view of an address; a wrong value is an error."""
        texts = {key: query[key].strip() for key in asdict(View()) if query.get(key, "").strip()}
        values: dict[str, Any] = dict(texts)
        for name in {"like", "size"} & texts.keys():
            values[name] = whole_number(texts[name], name)
        for name in {"low", "high"} & texts.keys():
            try:
                values[name] = float(texts[name])
            except ValueError:
                raise ConfigError(
                    f"{name} is not a number: {plain(texts[name], 40)!r}", hint="correct the address"
                ) from None
        if "like" in texts:
            values.setdefault("order", "like")
        if "copies" in texts:
            values.setdefault("order", "group")
        view = View(**values)
        view._check(table)
        return view

    def _check(self, table: ReviewTable) -> None:
        names = table.names
        allowed: dict[str, Collection[str]] = {
            "order": ORDERS, "state": STATES, "verdict": VERDICT_NAMES, "label": names, "given": names,
            "after": [*names, "-"],
        }  # fmt: skip
        for name, known in allowed.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ConfigError(f"{name} is {plain(value, 80)!r}", hint=did_you_mean(value, known))
        if self.copies not in (None, "any"):
            whole_number(self.copies, "copies", hint="'any', or the number of a group")
        if self.like is not None and not 0 <= self.like < len(table):
            raise ConfigError(f"like is {self.like}", hint=f"rows go from 0 to {len(table) - 1}")
        if self.order == "like" and self.like is None:
            raise ConfigError("the order 'like' needs a picture", hint="add like=ROW")
        if self.like is not None and table.visual is None:
            raise ConfigError("this run has no features of its pictures", hint="choose another order")
        if not SIZES[0] <= self.size <= SIZES[-1]:
            raise ConfigError(f"size is {self.size}", hint=f"{SIZES[0]} to {SIZES[-1]} pictures")

    @property
    def is_queue(self) -> bool:
        """Whether this is the whole queue: only there a random question is a random sample."""
        return replace(self, state=View.state, size=View.size) == View()

    def of_next_class(self, names: list[str]) -> View:
        """The same filters for the class after the one that is shown; the first where none is."""
        now = self.label or self.given or self.after
        following = names[(names.index(now) + 1) % len(names)] if now in names else names[0]
        own_order = self.like is not None or self.copies is not None
        return replace(
            self, label=following, given=None, after=None, like=None, copies=None,
            order=View.order if own_order else self.order,
        )  # fmt: skip

    def query(self, **changed: Any) -> str:
        """The address's query string, with something changed; defaults are left out."""
        defaults, own = asdict(View()), asdict(self) | changed
        return urlencode({key: value for key, value in own.items() if value != defaults.get(key)})


@dataclass(frozen=True)
class Page:
    """Some samples of a view.

    Attributes:
        rows: On this page.
        total: In the view with these filters.
        left: Of them, how many are not decided.
        last: Key of the next page; None at the end.
    """

    rows: Rows
    total: int
    left: int
    last: int | None


class Views:
    """The pages of a table; orders of the last views are remembered."""

    def __init__(self, table: ReviewTable) -> None:
        self._recent = lru_cache(RECENT)(partial(_ordered, table))

    def ordered(self, view: View) -> tuple[Rows, Rows]:
        """All rows of a view in order, whatever their state, and the place of every row in the order, (n,)."""
        return self._recent(replace(view, state="all", size=SIZES[0]))

    def page(self, view: View, decided: NDArray[np.bool_], after: int | None = None) -> Page:
        """The samples that follow ``after``, from the beginning where it is None.

        Args:
            view: What is shown.
            decided: Rows of which something is decided, (n,).
            after: A row of the view.
        """
        rows, place = self.ordered(view)
        begin = 0 if after is None else int(place[after]) + 1
        open_ = ~decided[rows]
        rest = rows[begin:]
        if view.state != "all":
            rest = rest[open_[begin:] == (view.state == "open")]
        page = rest[: view.size]
        return Page(page, len(rows), int(open_.sum()), int(page[-1]) if len(rest) > view.size else None)


def _ordered(table: ReviewTable, view: View) -> tuple[Rows, Rows]:
    order = _order(table, view)
    shown = _mask(table, view)[order]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(shown) - 1  # also of a row that the filters do not show
    return order[shown], place


def _order(table: ReviewTable, view: View) -> Rows:
    rows = np.arange(len(table))
    if view.order == "gain":
        return table.queue.order
    if view.order == "score":
        return np.lexsort((rows, table.label_score))
    if view.order == "like" and view.like is not None and table.visual is not None:
        return np.argsort(-similarity(table.visual, view.like), kind="stable")
    if view.order == "group":
        return np.lexsort((rows, -table.pixels, table.duplicate_group))
    return rows


def _mask(table: ReviewTable, view: View) -> NDArray[np.bool_]:
    """Rows that pass the filters, (n,)."""
    given, after, group = table.given, table.corrected, table.duplicate_group

    def has(labels: Labels, name: str) -> Any:
        return table.kind.has_class(labels, table.names.index(name))

    filters: dict[str, Callable[[Any], Any]] = {
        "label": lambda name: has(given, name) | has(after, name),
        "given": lambda name: has(given, name),
        "after": lambda name: table.kind.dropped(after) if name == "-" else has(after, name),
        "verdict": lambda name: table.decision == VERDICT_NAMES.index(name),
        "low": lambda score: table.label_score >= score,
        "high": lambda score: table.label_score <= score,
        "copies": lambda which: group >= 0 if which == "any" else group == int(which),
        "text": table.containing,
    }
    keep = np.ones(len(table), dtype=bool)
    for name, passing in filters.items():
        if (value := getattr(view, name)) is not None:
            keep &= passing(value)
    return keep


def whole_number(text: str, name: str, *, hint: str = "correct the address") -> int:
    """A number of an address.

    >>> whole_number("12", "size")
    12
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS):
        raise ConfigError(f"{name} is no number of up to {DIGITS} digits: {plain(text, 40)!r}", hint=hint)
    return int(text)
