"""The report in a real browser: Debian's chromium through playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capro.stages import report as stage
from tests.browsing import MARKS, WatchedPage, browser
from tests.fakes import fake_stage
from tests.report.made import HELD_OUT, HOSTILE, make_run

__all__ = ["browser"]
pytestmark = MARKS


@pytest.fixture(scope="module")
def made_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a made-up run: also the names of classes and the title are hostile."""
    run = make_run(tmp_path_factory.mktemp("browser"))
    fake_stage(run, "threshold/capro", lambda _: HELD_OUT)
    return stage.report(run, title=HOSTILE[1]).resolve()


@pytest.fixture(params=["made_report", "demo_report"])
def report(request: pytest.FixtureRequest) -> Path:
    """Each test opens both: the made-up run's report, and the demo's."""
    return Path(request.getfixturevalue(request.param))


class Watched(WatchedPage):
    """The page of a report."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        super().__init__(browser, **options)
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn]", state="attached")


@pytest.fixture
def watched(browser: Any, report: Path) -> Iterator[Watched]:
    made = Watched(browser, report)
    yield made
    page = made.page
    assert made.complaints == []
    assert [url for url in made.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in made.requests if url.startswith("file:")]) == 1
    assert page.evaluate("window.hacked") is None
    made.context.close()


def test_every_section_has_its_figure(watched: Watched) -> None:
    page = watched.page
    for place in ("flow", "matrix", "confusion", "reliability", "threshold"):
        assert page.locator(f"#{place}-figure svg").count() >= 1, place
    trained = page.evaluate("Object.keys(DATA.curves)")
    drawn = len(trained) + ("train" in trained)  # of step 2 also what it did to the labels
    assert page.locator("#curves svg").count() == drawn >= 2
    assert page.locator(".noise-row").count() == min(16, page.evaluate("DATA.classes.length"))
    assert page.locator(".absent:visible").count() == 0
    assert page.locator("h1").inner_text() in (HOSTILE[1], "capro demo")


def test_hostile_texts_are_text(watched: Watched) -> None:
    page = watched.page
    shown: list[str] = []
    for details in page.locator("details.class").all():
        details.evaluate("node => { node.open = true; }")
    for kind in range(page.evaluate("DATA.noise.kinds.length")):
        chips = f"#class-list .chips .chip:nth-child({kind + 1}):enabled"
        page.eval_on_selector_all(chips, "all => all.forEach((chip) => chip.click())")
        shown += page.locator(".card").all_inner_texts()
    assert len(shown) > 40
    for text in HOSTILE:
        assert any(text in card for card in shown), text
    assert page.locator("img").count() == 0
    assert page.locator("[onerror], [onmouseover], [onload], [style*=url]").count() == 0
    links = page.eval_on_selector_all("a", "all => all.map(a => a.getAttribute('href'))")
    assert all(link.startswith("#") for link in links)
    page.locator(".card").first.click()
    assert page.locator("dialog dd").count() >= 3
    page.wait_for_timeout(100)  # an error handler of a picture would have run by now


def test_galleries_open_and_show_pictures_texts_and_evidence(watched: Watched) -> None:
    page = watched.page
    second = page.locator("details.class").nth(1)
    assert second.locator(".card").count() == 0  # built on demand
    second.locator("summary").click()
    second.locator(".card canvas[data-ready]").first.wait_for()
    second.locator(".chip", has_text="kept").click()
    assert second.locator(".chip[aria-pressed=true]").inner_text().startswith("kept")
    card = second.locator(".card").first
    assert "Kept as" in card.inner_text()
    canvas = card.locator("canvas[data-ready]")
    canvas.wait_for()
    middle = "c => [...c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data]"
    assert canvas.evaluate(middle)[3] == 255  # drawn, not blank
    card.click()
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_dropped_images_are_shown_with_the_value_that_drops_them(browser: Any, demo_report: Path) -> None:
    made = Watched(browser, demo_report)
    page, part = made.page, made.page.locator("#dropped")
    levels = page.evaluate("DATA.dropped.levels")
    rows = [row.split("\t") for row in part.locator("tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == ["0.3", "0.5 (this run)", "0.7", "0.9"]
    assert [int(row[1].replace(",", "")) for row in rows] == [level["dropped"] for level in reversed(levels)]
    for number, level in enumerate(levels):
        chip = part.locator(".chip").nth(number)
        assert chip.is_enabled() == bool(level["total"])
        if not level["total"]:
            continue
        chip.click()
        card = part.locator(".card").first
        card.locator("canvas[data-ready]").wait_for()
        assert ("→ dropped" in card.inner_text()) == (level["value"] >= 0.5)
        assert level["evidence"][0] in card.inner_text()
    assert made.complaints == []
    made.context.close()


def test_matches_change_with_the_class(watched: Watched) -> None:
    page = watched.page
    assert page.locator("#match-figure .small").count() == 3
    page.locator("#match-figure select").select_option(index=2)
    shown = page.evaluate("DATA.matches.columns.map((name) => DATA.matches.classes[2][name].length)")
    members = page.evaluate("DATA.matches.classes[2].of")
    assert 0 < max(shown) <= min(12, members)  # those without a text are in no column
    assert page.locator("#match-figure .small button").count() == sum(shown)


def test_the_map_shows_a_picture_on_hover(watched: Watched) -> None:
    page = watched.page
    box = page.locator(".map-box")
    box.scroll_into_view_if_needed()
    page.wait_for_timeout(700)  # smooth scrolling
    place = box.bounding_box()
    x, y = page.evaluate("[DATA.map.x[5], DATA.map.y[5]]")
    size = (place["width"] - 26, place["height"] - 26)
    page.mouse.move(place["x"] + 13 + x * size[0], place["y"] + 13 + (1 - y) * size[1])
    page.locator("#tip canvas[data-ready]").wait_for()
    for mode in ("corrected label", "verdict"):
        page.locator("#map .chip", has_text=mode).click()
    page.mouse.move(2, 2)
    assert not page.locator("#tip").is_visible()


def test_the_threshold_moves_the_numbers(watched: Watched) -> None:
    page = watched.page
    cell = page.locator("[data-measure=capro-answered]")
    chosen = page.evaluate("DATA.held_out && DATA.held_out.threshold")
    assert page.locator("#chosen-threshold, line.chosen").count() == (2 if chosen else 0)
    assert page.locator(".slider output").inner_text() == f"{chosen or 0.5:.2f}"
    slider = page.locator("#threshold-slider")
    slider.focus()
    page.keyboard.press("Home")
    assert cell.inner_text() == "100.0\xa0%"
    page.keyboard.press("End")
    assert cell.inner_text() != "100.0\xa0%"
    assert page.locator(".slider output").inner_text() == "1.00"


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen_and_both_themes_differ(
    browser: Any, report: Path, width: int
) -> None:
    paints = set()
    for scheme in ("light", "dark"):
        made = Watched(browser, report, viewport={"width": width, "height": 800}, color_scheme=scheme)
        assert made.page.evaluate("document.documentElement.scrollWidth") <= width
        paint = "getComputedStyle(document.body).backgroundColor"
        paints.add(made.page.evaluate(paint))
        before = made.page.evaluate(paint)
        made.page.locator("#theme").click()
        assert made.page.evaluate(paint) != before
        assert made.complaints == []
        made.context.close()
    assert len(paints) == 2


@pytest.mark.parametrize("options", [{"multi": True}, {"upto": "scan"}, {"upto": "match"}, {"test": False}])
def test_other_runs_open_without_a_complaint(browser: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    made = Watched(browser, stage.report(make_run(tmp_path, **options)).resolve())
    assert made.complaints == []
    assert made.page.evaluate("window.hacked") is None
    assert made.page.locator("h1").count() == 1
    made.context.close()
