"""Views: filters, orders, pages by key."""

from __future__ import annotations

import numpy as np
import pytest

from capro.errors import ConfigError
from capro.review.session import ReviewSession
from capro.review.views import ORDERS, View
from tests.made_up import CLASSES


def pages(session: ReviewSession, view: View, decide: bool = False) -> list[int]:
    """All rows page by page; decisions made meanwhile hide rows of earlier pages."""
    found: list[int] = []
    after: int | None = None
    while True:
        page = session.views.page(view, session.decided, after)
        found += page.rows.tolist()
        if decide:
            session.decided[page.rows[: len(page.rows) // 2]] = True
        if page.last is None:
            return found
        after = page.last


@pytest.mark.parametrize("order", [*ORDERS])
@pytest.mark.parametrize("decide", [False, True])
def test_pages_by_key_neither_skip_nor_repeat(session: ReviewSession, order: str, decide: bool) -> None:
    view = View.parse({"order": order, "size": "20", "like": "3"}, session.table)
    found = pages(session, view, decide)
    assert sorted(found) == [*range(len(session.table))]


def test_filters_mean_what_they_say(session: ReviewSession) -> None:
    table = session.table
    given, after = table.given, table.corrected
    names = table.names
    for query, expected in (
        ({"given": CLASSES[0]}, given == 0),
        ({"after": CLASSES[1]}, after == 1),
        ({"after": "-"}, after < 0),
        ({"label": CLASSES[2]}, (given == 2) | (after == 2)),
        ({"given": CLASSES[0], "after": CLASSES[1]}, (given == 0) & (after == 1)),
        ({"verdict": "relabel"}, (given != after) & (after >= 0)),
        ({"low": "0.2", "high": "0.5"}, (table.label_score >= 0.2) & (table.label_score <= 0.5)),
        ({"copies": "any"}, table.duplicate_group >= 0),
        ({"text": "TAG1 web"}, np.array([names[given[r]] == CLASSES[1] for r in range(len(table))])),
    ):
        view = View.parse({**query, "size": "200"}, table)
        assert sorted(session.views.ordered(view)[0].tolist()) == np.flatnonzero(expected).tolist(), query


def test_the_state_hides_what_is_decided(session: ReviewSession) -> None:
    session.decide([1, 2], "out", None, person="me", view=View())
    page = session.views.page(View(), session.decided)
    assert (page.left, page.total) == (len(session.table) - 2, len(session.table))
    assert not {1, 2} & set(page.rows.tolist())
    assert set(session.views.page(View(state="decided"), session.decided).rows.tolist()) == {1, 2}


def test_alike_begins_with_the_picture_itself(session: ReviewSession) -> None:
    view = View.parse({"like": "7"}, session.table)
    assert view.order == "like"
    assert session.views.ordered(view)[0][0] == 7


def test_the_address_holds_the_view(session: ReviewSession) -> None:
    view = View.parse({"verdict": "drop", "size": "100", "label": CLASSES[0]}, session.table)
    assert (
        View.parse(
            dict(pair.split("=") for pair in view.query().replace("%2F", "/").split("&")), session.table
        )
        == view
    )
    assert View().query() == ""


def test_the_next_class_keeps_the_other_filters(session: ReviewSession) -> None:
    names = session.table.names
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
        found = View.parse(query, session.table).of_next_class(names)
        assert found == View.parse(expected, session.table), query


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
def test_a_wrong_filter_is_named(session: ReviewSession, query: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        View.parse(query, session.table)
