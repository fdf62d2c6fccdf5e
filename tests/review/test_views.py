"""Views: filters, orders, pages by key."""

from __future__ import annotations

import numpy as np
import pytest

from capro.errors import ConfigError
from capro.review.session import ReviewSession
from capro.review.views import ORDERS, View
from tests.made_up import CLASSES


def pages(desk: ReviewSession, view: View, decide: bool = False) -> list[int]:
    """All rows page by page; decisions made meanwhile hide rows of earlier pages."""
    found: list[int] = []
    after: int | None = None
    while True:
        page = desk.views.page(view, desk.decided, after)
        found += page.rows.tolist()
        if decide:
            desk.decided[page.rows[: len(page.rows) // 2]] = True
        if page.last is None:
            return found
        after = page.last


@pytest.mark.parametrize("order", [*ORDERS])
@pytest.mark.parametrize("decide", [False, True])
def test_pages_by_key_neither_skip_nor_repeat(desk: ReviewSession, order: str, decide: bool) -> None:
    view = View.parse({"order": order, "size": "20", "like": "3"}, desk.table)
    found = pages(desk, view, decide)
    assert sorted(found) == [*range(len(desk.table))]


def test_filters_mean_what_they_say(desk: ReviewSession) -> None:
    table = desk.table
    given, after = table.given, table.after
    names = table.names
    for query, expected in (
        ({"given": CLASSES[0]}, given == 0),
        ({"after": CLASSES[1]}, after == 1),
        ({"after": "-"}, after < 0),
        ({"label": CLASSES[2]}, (given == 2) | (after == 2)),
        ({"given": CLASSES[0], "after": CLASSES[1]}, (given == 0) & (after == 1)),
        ({"verdict": "relabel"}, (given != after) & (after >= 0)),
        ({"low": "0.2", "high": "0.5"}, (table.score >= 0.2) & (table.score <= 0.5)),
        ({"copies": "any"}, table.copies >= 0),
        ({"text": "TAG1 web"}, np.array([names[given[r]] == CLASSES[1] for r in range(len(table))])),
    ):
        view = View.parse({**query, "size": "200"}, table)
        assert sorted(desk.views.ordered(view).tolist()) == np.flatnonzero(expected).tolist(), query


def test_the_state_hides_what_is_decided(desk: ReviewSession) -> None:
    desk.decide([1, 2], "out", None, who="me", view=View())
    page = desk.views.page(View(), desk.decided)
    assert (page.left, page.total) == (len(desk.table) - 2, len(desk.table))
    assert not {1, 2} & set(page.rows.tolist())
    assert set(desk.views.page(View(state="decided"), desk.decided).rows.tolist()) == {1, 2}


def test_alike_begins_with_the_picture_itself(desk: ReviewSession) -> None:
    view = View.parse({"like": "7"}, desk.table)
    assert view.order == "like"
    assert desk.views.ordered(view)[0] == 7


def test_the_address_holds_the_view(desk: ReviewSession) -> None:
    view = View.parse({"verdict": "drop", "size": "100", "label": CLASSES[0]}, desk.table)
    assert (
        View.parse(dict(pair.split("=") for pair in view.query().replace("%2F", "/").split("&")), desk.table)
        == view
    )
    assert View().query() == ""


def test_the_next_class_keeps_the_other_filters(desk: ReviewSession) -> None:
    names = desk.table.names
    for query, expected in (
        ({}, {"label": names[0]}),
        ({"label": names[0], "verdict": "drop"}, {"label": names[1], "verdict": "drop"}),
        ({"label": names[1], "order": "score"}, {"label": names[2], "order": "score"}),
        ({"given": names[1], "after": names[0]}, {"label": names[2]}),
        ({"label": names[-1], "state": "all"}, {"label": names[0], "state": "all"}),
        ({"after": "-", "size": "20"}, {"label": names[0], "size": "20"}),
        ({"like": "3"}, {"label": names[0]}),
        ({"copies": "any", "label": names[1]}, {"label": names[2]}),
    ):  # fmt: skip
        found = View.parse(query, desk.table).of_next_class(names)
        assert found == View.parse(expected, desk.table), query


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"order": "gian"}, "order is 'gian'"),
        ({"label": "cow"}, "label is 'cow'"),
        ({"low": "x"}, "low is not a number"),
        ({"size": "1"}, "size is 1"),
        ({"like": "999"}, "like is 999"),
        ({"order": "like"}, "needs a picture"),
        ({"copies": "x"}, "copies is no number"),
        ({"state": "x"}, "state is 'x'"),
    ],
)
def test_a_wrong_filter_is_named(desk: ReviewSession, query: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        View.parse(query, desk.table)
