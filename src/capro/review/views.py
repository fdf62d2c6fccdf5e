"""What is shown, and in which order: a view is the address's filters, and its pages go by key.

A page begins after a given sample in the order of the view, so that decisions made meanwhile, here or in
another browser, neither skip nor repeat a sample.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from capro.errors import ConfigError, did_you_mean
from capro.review.pictures import likeness
from capro.review.table import VERDICT_NAMES, ReviewTable
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
RECENT = 8  # views whose order is kept
Rows = NDArray[np.int64]
State = Literal["open", "decided", "all"]


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
        like: A row: pictures like it.
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
        """The view of an address; a value that cannot be is an error."""
        given = {key: query[key].strip() for key in asdict(View()) if query.get(key, "").strip()}
        found: dict[str, Any] = dict(given)
        for name in ("like", "size"):
            if name in given:
                found[name] = whole_number(given[name], name)
        for name in ("low", "high"):
            if name in given:
                try:
                    found[name] = float(given[name])
                except ValueError:
                    raise ConfigError(
                        f"{name} is not a number: {plain(given[name], 40)!r}", hint="correct the address"
                    ) from None
        if "like" in found:
            found.setdefault("order", "like")
        if found.get("copies"):
            found.setdefault("order", "group")
        view = View(**found)
        view._check(table)
        return view

    def _check(self, table: ReviewTable) -> None:
        names = table.names
        allowed: list[tuple[str, Any, list[str]]] = [
            ("order", self.order, [*ORDERS]), ("state", self.state, [*STATES]),
            ("verdict", self.verdict, [*VERDICT_NAMES]), ("label", self.label, names),
            ("given", self.given, names), ("after", self.after, [*names, "-"]),
        ]  # fmt: skip
        for name, value, known in allowed:
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
        return View(**asdict(self) | {"state": "open", "size": View.size}) == View()

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
        """The address's query string, with something changed; what is as always is left out."""
        plain, own = asdict(View()), asdict(self) | changed
        return urlencode({key: value for key, value in own.items() if value != plain.get(key)})


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
    """The pages of a table; orders of the last views are kept."""

    def __init__(self, table: ReviewTable) -> None:
        self.table = table
        self._recent: OrderedDict[View, tuple[Rows, Rows]] = OrderedDict()
        self._lock = threading.Lock()

    def ordered(self, view: View) -> Rows:
        """All rows of a view, whatever their state, in its order."""
        return self._ordered(view)[0]

    def page(self, view: View, decided: NDArray[np.bool_], after: int | None = None) -> Page:
        """The samples that follow ``after``, from the beginning where it is None.

        Args:
            view: What is shown.
            decided: Rows of which something is decided, (n,).
            after: A row of the view.
        """
        rows, place = self._ordered(view)
        begin = 0 if after is None else int(place[after]) + 1
        found: list[Rows] = []
        count, at = 0, begin
        while count <= view.size and at < len(rows):
            part = rows[at : at + 4 * view.size]
            at += len(part)
            keep = part[_wanted(view, decided[part])]
            found.append(keep)
            count += len(keep)
        shown = np.concatenate([np.zeros(0, np.int64), *found])
        left = int((~decided[rows]).sum())
        more = len(shown) > view.size
        page = shown[: view.size]
        return Page(page, len(rows), left, int(page[-1]) if more else None)

    def _ordered(self, view: View) -> tuple[Rows, Rows]:
        """Rows of a view in order, and the place of every row in the order, (n,)."""
        key = View(**asdict(view) | {"state": "all", "size": SIZES[0]})
        with self._lock:
            found = self._recent.pop(key, None)
            if found is None:
                full = self._order(view)
                shown = self._mask(view)[full]
                place = np.empty(len(full), dtype=np.int64)
                place[full] = np.cumsum(shown) - 1  # also of a key that the filters do not show
                found = full[shown], place
            self._recent[key] = found
            while len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return found

    def _order(self, view: View) -> Rows:
        table, rows = self.table, np.arange(len(self.table))
        if view.order == "gain":
            return table.queue.order
        if view.order == "score":
            return np.lexsort((rows, table.score))
        if view.order == "like" and view.like is not None and table.visual is not None:
            return np.argsort(-likeness(table.visual, view.like), kind="stable")
        if view.order == "group":
            return np.lexsort((rows, -table.pixels, table.copies))
        return rows

    def _mask(self, view: View) -> NDArray[np.bool_]:
        """Rows that pass the filters, (n,)."""
        table = self.table
        keep = np.ones(len(table), dtype=bool)
        if view.label is not None:
            keep &= self._has(table.given, view.label) | self._has(table.after, view.label)
        if view.given is not None:
            keep &= self._has(table.given, view.given)
        if view.after == "-":
            keep &= table.after < 0 if not table.several else (table.after < 0).any(axis=1)
        elif view.after is not None:
            keep &= self._has(table.after, view.after)
        if view.verdict is not None:
            keep &= table.verdict == VERDICT_NAMES.index(view.verdict)
        if view.low is not None:
            keep &= table.score >= view.low
        if view.high is not None:
            keep &= table.score <= view.high
        if view.copies is not None:
            keep &= table.copies >= 0 if view.copies == "any" else table.copies == int(view.copies)
        if view.text is not None:
            keep &= table.containing(view.text)
        return keep

    def _has(self, labels: NDArray[np.int64], name: str) -> NDArray[np.bool_]:
        number = self.table.names.index(name)
        return np.asarray(labels[:, number] > 0 if labels.ndim == 2 else labels == number)


def whole_number(text: str, name: str, *, hint: str = "correct the address") -> int:
    """A number of an address.

    >>> whole_number("12", "size")
    12
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS):
        raise ConfigError(f"{name} is no number of up to {DIGITS} digits: {plain(text, 40)!r}", hint=hint)
    return int(text)


def _wanted(view: View, decided: NDArray[np.bool_]) -> NDArray[np.bool_]:
    if view.state == "all":
        return np.ones(len(decided), dtype=bool)
    return decided if view.state == "decided" else ~decided
