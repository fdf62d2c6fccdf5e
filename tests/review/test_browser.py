"""The review in a real browser: Debian's chromium through playwright."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import pytest

from capro.pipeline.run import Run
from capro.review.log import Log, log_file
from capro.review.queue import ReviewTable
from capro.review.serving import Review
from capro.review.views import Views
from tests.browsing import MARKS, WatchedPage, browser
from tests.made_up import CLASSES
from tests.review.made import clean_anew, make_run

__all__ = ["browser"]
pytestmark = MARKS
READY = "html[data-ready]"


@pytest.fixture
def review(run: Run) -> Iterator[Review]:
    made = Review(run, work=_other_verdicts).start()
    yield made
    made.stop()


def _other_verdicts(path: Path) -> Iterator[str]:
    clean_anew(Run.open(path))
    yield "[1/1] clean"


class Watched(WatchedPage):
    """A page of a review."""

    def __init__(self, browser: Any, link: str, **options: Any) -> None:
        super().__init__(browser, **options)
        self.base = link.split("/open", maxsplit=1)[0]
        self.page.goto(link)
        self.page.wait_for_url(f"{self.base}/")
        self.page.wait_for_selector(READY, state="attached")

    def go(self, path: str) -> Any:
        self.page.goto(self.base + path)
        self.page.wait_for_selector(READY, state="attached")
        return self.page

    def saved(self, count: int) -> None:
        """Wait until the page shows so many decided samples."""
        self.until(f"document.querySelector('#decided').textContent === '{count}'")

    def until(self, condition: str, *, seconds: float = 20) -> None:
        """Wait for a condition of the page; its own policy forbids what playwright waits with."""
        for _ in range(int(seconds * 20)):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(condition)

    def kinds(self) -> list[str]:
        return [tile.get_attribute("data-kind") for tile in self.page.locator("#grid > .tile").all()]


@pytest.fixture
def watched(browser: Any, review: Review) -> Iterator[Watched]:
    made = Watched(browser, review.link)
    yield made
    assert made.complaints == []
    assert [url for url in made.requests if not url.startswith(f"{made.base}/")] == []
    assert made.page.evaluate("window.hacked") is None
    made.context.close()


def test_a_whole_review_by_keyboard(watched: Watched, review: Review) -> None:
    page, total = watched.page, len(review.session.table)
    keys = page.keyboard
    keys.press("a")
    keys.press("d")
    keys.press("s")
    keys.press("r")
    page.wait_for_selector("#labels[open]")
    keys.type("nu")
    keys.press("Enter")
    keys.press("p")
    watched.saved(5)
    rows = [int(tile.get_attribute("data-row")) for tile in page.locator("#grid > .tile").all()]
    answers = [review.session.decisions()[row] for row in rows[:5]]
    assert [said.answer for said in answers][1:3] == ["out", "unsure"]
    assert answers[3].yes == ("nut",)
    assert answers[4].anchor
    # a range, with its scope and count stated before it happens
    keys.press("Shift+ArrowRight")
    keys.press("Shift+ArrowRight")
    keys.press("d")
    page.wait_for_selector("#sure[open]")
    assert page.locator("#sure-title").inner_text().startswith("Drop: 3 pictures")
    assert "Selected on this page" in page.locator("#sure-text").inner_text()
    keys.press("Escape")
    page.wait_for_selector("#sure:not([open])", state="attached")  # a browser closes it a moment later
    assert len(review.session.decisions()) == 5
    keys.press("d")
    page.wait_for_selector("#sure[open]")
    keys.press("Enter")
    watched.saved(8)
    # the rest of the page at once
    keys.press("e")
    keys.press("a")
    page.wait_for_selector("#sure[open]")
    assert "The whole page, no other page" in page.locator("#sure-text").inner_text()
    keys.press("Enter")
    watched.saved(total)
    page.reload()
    page.wait_for_selector("text=Nothing left to decide here")


def test_a_question_asked_again_at_once_is_not_answered_by_the_closing_of_the_first(
    watched: Watched, review: Review
) -> None:
    page = watched.page
    page.keyboard.press("Shift+ArrowRight")
    page.evaluate(
        """() => {
          const drop = () => dispatchEvent(new KeyboardEvent("keydown", { key: "d" }));
          drop();
          document.querySelector("#sure").close();  // as Escape does; its event comes when this script has ended
          drop();
        }"""
    )
    page.wait_for_timeout(200)
    page.keyboard.press("Enter")
    watched.saved(2)


def test_undo_and_redo_by_keyboard_after_a_restart(browser: Any, run: Run) -> None:
    first = Review(run).start()
    seen = Watched(browser, first.link)
    seen.page.keyboard.press("a")
    seen.page.keyboard.press("d")
    seen.saved(2)
    seen.context.close()
    first.stop()
    second = Review(run).start()
    seen = Watched(browser, second.link)
    seen.page.keyboard.press("z")
    seen.saved(1)
    assert "Undone" in seen.page.locator("#toast").inner_text()
    seen.page.keyboard.press("z")
    seen.saved(0)
    seen.page.keyboard.press("y")
    seen.saved(1)
    seen.context.close()
    second.stop()


def test_by_mouse(watched: Watched, review: Review) -> None:
    page = watched.page
    tiles = page.locator("#grid > .tile")
    tiles.nth(2).locator(".title").click()
    page.locator("[data-verb=accept]").click()
    watched.saved(1)
    tiles.nth(5).hover()
    tiles.nth(5).locator(".pick").click()
    tiles.nth(6).hover()
    tiles.nth(6).locator(".pick").click()
    assert page.locator("#scope").inner_text().startswith("2 selected")
    page.locator("[data-verb=label]").click()
    page.locator("#labels-list li", has_text=CLASSES[1]).first.click()
    page.locator("#sure-yes").click()
    watched.saved(3)
    page.locator("[data-do=undo]").click()
    watched.saved(1)
    page.locator("[data-do=redo]").click()
    watched.saved(3)
    tiles.nth(8).locator(".picture").click()
    page.wait_for_url("**/sample/**")
    page.wait_for_selector(".likes .tile")
    page.locator("[data-verb=out]").click()
    watched.saved(4)
    page.locator("#more-like").click()
    page.wait_for_selector("text=Pictures similar to this one")
    page.locator("nav a", has_text="Progress").click()
    page.wait_for_selector("h1 >> text=Progress")


def test_filters_live_in_the_address(watched: Watched, review: Review) -> None:
    page = watched.page
    page.locator("select[name=verdict]").select_option("relabel")
    page.wait_for_url("**verdict=relabel**")
    shown = page.locator("#grid > .tile").count()
    assert shown == int((review.session.table.decision == 2).sum())
    page.reload()
    assert page.locator("#grid > .tile").count() == shown
    page.keyboard.press("/")
    page.keyboard.type("no such text")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=No sample fits these filters")


def test_one_after_the_other_by_keyboard(watched: Watched, review: Review) -> None:
    page = watched.page
    page.keyboard.press("Enter")
    page.wait_for_url("**/sample/**")
    page.wait_for_selector(READY, state="attached")
    seen = []
    for _ in range(5):
        seen.append(page.locator(".sheet").get_attribute("data-row"))
        page.keyboard.press("a")
        watched.until(f"document.querySelector('.sheet').dataset.row !== '{seen[-1]}'")
        watched.until("location.pathname === '/sample/' + document.querySelector('.sheet').dataset.row")
    for _ in range(400):  # the next picture does not wait for the answer before it to be kept
        if {int(row) for row in seen} <= set(review.session.decisions()):
            break
        page.wait_for_timeout(50)
    assert {int(row) for row in seen} <= set(review.session.decisions())
    watched.saved(len(review.session.decisions()))
    assert len(set(seen)) == 5
    page.keyboard.press("z")
    watched.until(f"document.querySelector('.sheet').dataset.row === '{seen[-1]}'")
    page.keyboard.press("g")
    page.wait_for_selector("#grid")


def test_at_phone_width(browser: Any, review: Review) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    seen = Watched(browser, review.link, **phone)
    page = seen.page
    for path in ("/", "/classes", "/class/0", "/progress", "/?copies=any", "/sample/0"):
        seen.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    seen.go("/")
    page.locator("#grid > .tile .title").nth(1).tap()
    page.locator("[data-verb=out]").tap()
    seen.saved(1)
    page.locator("#grid > .tile .pick").nth(2).tap()
    page.locator("#grid > .tile .pick").nth(3).tap()
    page.locator("[data-verb=accept]").tap()
    page.locator("#sure-yes").tap()
    seen.saved(3)
    page.locator("[data-do=page]").tap()
    assert page.locator("#scope").inner_text().startswith(f"{len(review.session.table)} selected")
    box = page.locator("[data-verb=accept]").bounding_box()
    assert box["height"] >= 44
    assert seen.complaints == []
    seen.context.close()


CONTRAST = """
() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/(, 0\\)|transparent)$/.test(colour)) return colour;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *, nav *, footer *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.disabled) continue;
    const [one, two] = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < 4.5) found.push(`${node.className} "${node.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return found;
}
"""
PAGES = ("/", "/classes", "/class/0", "/progress", "/sample/0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readable_on_a_wide_screen_in_light_and_dark(browser: Any, review: Review, scheme: str) -> None:
    seen = Watched(browser, review.link, viewport={"width": 1600, "height": 900}, color_scheme=scheme)
    for path in PAGES:
        page = seen.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1600, path
        assert page.evaluate(CONTRAST) == [], path  # as WCAG asks of text
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 80)"
    assert page.evaluate(dark) == (scheme == "dark")
    tiles = [box.bounding_box() for box in seen.go("/").locator("#grid > .tile").all()]
    assert sum(box["y"] == tiles[0]["y"] for box in tiles) >= 5  # the width is used
    assert seen.complaints == []
    seen.context.close()


def test_labels_are_added_and_removed_where_there_are_several(browser: Any, tmp_path: Path) -> None:
    review = Review(make_run(tmp_path, multi=True), work=_other_verdicts).start()
    seen = Watched(browser, review.link)
    page, keys = seen.page, seen.page.keyboard
    row = int(page.locator("#grid > .tile").first.get_attribute("data-row"))
    new = next(name for name in CLASSES if name not in review.session.table.labels(row, before=False))
    keys.press("+")
    page.wait_for_selector("#labels[open]")
    assert "Add which label?" in page.locator("#labels").inner_text()
    keys.type(new)
    keys.press("Enter")
    seen.saved(1)
    said = review.session.decisions()[row]
    assert (said.yes, said.no, said.whole) == ((new,), (), False)  # of one label; nothing of the others
    assert new in page.locator("#grid > .tile").first.inner_text()
    page.locator("#grid > .tile .title").first.click()
    keys.press("-")
    page.wait_for_selector("#labels[open]")
    keys.type(new)
    keys.press("Enter")
    seen.until(f"document.querySelector('#grid > .tile').innerText.includes('\u2212 {new}')")
    assert (review.session.decisions()[row].yes, review.session.decisions()[row].no) == ((), (new,))
    page = seen.go(f"/sample/{row}")
    page.locator("[data-verb=add]").click()
    page.wait_for_selector("#labels[open]")
    keys.press("Escape")
    assert seen.complaints == []
    seen.context.close()
    review.stop()


def test_two_browsers_see_each_other(browser: Any, review: Review) -> None:
    one, two = (Watched(browser, review.link) for _ in range(2))
    one.page.keyboard.press("d")
    one.saved(1)
    two.page.wait_for_selector("#grid > .tile[data-kind=out]")
    for number in range(5):
        one.page.keyboard.press("a")
        two.page.locator("#grid > .tile").nth(23 - number).locator(".title").click()
        two.page.keyboard.press("s")
    one.until("document.querySelectorAll('#grid > .tile[data-kind=unsure]').length === 5")
    two.until("document.querySelectorAll('#grid > .tile[data-kind]:not([data-kind=\"\"])').length >= 11")
    assert len(review.session.decisions()) >= 11
    for each in (one, two):
        each.context.close()


def test_of_copies_the_best_is_kept_by_key_and_by_button(watched: Watched, review: Review) -> None:
    page = watched.go("/?copies=any")
    assert page.locator(".bundle .tile").count() == 2
    page.keyboard.press("b")
    page.wait_for_selector("#sure[open]")
    assert page.locator("#sure-title").inner_text() == "Keep the best of 2 near duplicates?"
    assert (
        "The whole group: 1 stays, 1 picture dropped as near duplicates."
        in page.locator("#sure-text").inner_text()
    )
    page.keyboard.press("Enter")
    watched.saved(1)
    page.keyboard.press("z")
    watched.saved(0)
    assert page.locator("[data-kind=saving]").count() == 0
    page.locator("[data-best]").click()
    page.locator("#sure-yes").click()
    watched.saved(1)
    assert [said.answer for said in review.session.decisions().values()] == ["copy"]


def test_the_best_of_a_group_that_goes_over_the_page(watched: Watched, review: Review) -> None:
    session = review.session
    copies = np.where(np.arange(len(session.table)) < 22, 7, -1)
    session.table = ReviewTable(session.run)
    vars(session.table).update(duplicate_group=copies)
    session.views = Views(session.table)
    page = watched.go("/?copies=any&size=20")
    assert "20 of 22 near duplicates" in page.locator(".bundle h2").inner_text()
    page.keyboard.press("b")
    page.wait_for_selector("#sure[open]")
    said = page.locator("#sure-text").inner_text()
    assert "1 stays, 21 pictures dropped as near duplicates, 2 of them not on this page" in said
    page.keyboard.press("Enter")
    watched.saved(21)
    page.keyboard.press("b")
    watched.until("document.querySelector('#toast').textContent.startsWith('Nothing to do')")


def test_the_page_is_selected_and_left_by_buttons(watched: Watched, review: Review) -> None:
    page, names = watched.page, review.session.table.names
    page.locator("[data-do=page]").click()
    assert page.locator("#scope").inner_text().startswith(f"{len(review.session.table)} selected")
    page.locator("[data-do=page]").click()
    assert page.locator(".selected").count() == 0
    page.keyboard.press("c")
    page.wait_for_url(f"**/?label={quote_plus(names[0])}")
    page.locator("#next-class").click()
    page.wait_for_url(f"**/?label={quote_plus(names[1])}")
    page.wait_for_selector(READY, state="attached")
    page.locator("[data-do=like]").click()
    page.wait_for_selector("text=Pictures similar to this one")
    watched.go(f"/sample/3?label={quote_plus(names[1])}")
    page.locator("[data-do=next]").click()
    watched.until("location.pathname !== '/sample/3'")
    page.locator("[data-do=back]").click()
    watched.until("location.pathname === '/sample/3'")
    page.keyboard.press("c")
    page.wait_for_url(f"**/?label={quote_plus(names[2])}")
    assert not review.session.decisions()


@pytest.mark.parametrize("path", ["/?label=nut&size=20", "/sample/7?order=row"])
def test_a_page_of_before_apply_accepts_nothing_and_is_read_again(
    browser: Any, review: Review, path: str
) -> None:
    seen = Watched(browser, review.link)
    page = seen.go(path)
    before = review.session.version
    for _ in _other_verdicts(review.session.run.path):
        pass
    review.session.reload()
    page.keyboard.press("a")
    page.wait_for_selector("#told[open]")
    assert "Your last action was not saved" in page.locator("#told-text").inner_text()
    assert page.url == seen.base + path
    assert (
        page.locator("meta[name=capro-version]").get_attribute("content") == review.session.version != before
    )
    page.keyboard.press("a")  # no answer to what nobody has looked at
    page.wait_for_timeout(300)
    assert not review.session.decisions()
    page.keyboard.press("Enter")
    page.keyboard.press("a")
    seen.saved(1)
    (said,) = review.session.decisions().values()
    row = next(iter(review.session.decisions()))
    assert said.proposed == review.session.table.labels(row, before=False)
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert page.locator("#told[open]").count() == 0
    seen.context.close()


def test_what_the_server_refuses_is_said_and_not_sent_for_ever(browser: Any, review: Review) -> None:
    seen = Watched(browser, review.link)
    page, asked = seen.page, []

    def refuse(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(status=413, body="The request is too large.")

    page.route("**/decide", refuse, times=1)
    page.keyboard.press("d")
    seen.until("document.querySelector('#toast').textContent === 'Not saved: The request is too large.'")
    assert page.locator("[data-kind=saving]").count() == 0
    page.keyboard.press("d")
    seen.saved(1)
    assert len(asked) == 1
    seen.context.close()


def test_hostile_texts_are_inert(watched: Watched, review: Review) -> None:
    page = watched.page
    shown = ""
    for row in range(8):
        watched.go(f"/sample/{row}")
        page.wait_for_selector(".likes .tile")
        shown += page.locator(".texts").inner_text()
    assert "<img src=x onerror=" in shown
    assert page.locator("img[src=x]").count() == 0


def test_apply_is_announced_and_the_queue_renewed(watched: Watched) -> None:
    page = watched.page
    page.keyboard.press("a")
    watched.saved(1)
    page.locator("#apply").click()
    page.locator("#sure-yes").click()
    page.wait_for_selector("text=Applied: the queue is new.")
    page.locator("#news a").click()
    page.wait_for_selector(READY, state="attached")
    page.locator("#apply").click()
    page.locator("#sure-yes").click()
    watched.until("document.querySelector('#toast').textContent === 'Applied: nothing is new.'")


def test_no_jump_while_pictures_load_and_focus_is_visible(watched: Watched) -> None:
    page = watched.page
    boxes = "[...document.querySelectorAll('#grid .picture')].map(e => [e.offsetWidth, e.offsetHeight])"
    assert all(abs(width - height) <= 1 for width, height in page.evaluate(boxes))
    page.keyboard.press("ArrowRight")
    style = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert style == "3px"
    unnamed = """[...document.querySelectorAll('button, a, input, select')].filter(e => e.type !== 'hidden' &&
        !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"""
    assert page.evaluate(unnamed) == 0


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _served(run: Run, port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "capro", "review", str(run.path), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_killed_server_loses_none_of_200_decisions(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, per_class=80)
    port = _free_port()
    process, link = _served(run, port)
    seen = Watched(browser, link)
    page = seen.go("/?size=200&order=row")
    confirmed: list[int] = []
    page.on("response", lambda answer: confirmed.append(answer.status) if "/decide" in answer.url else None)
    for number in range(200):
        page.keyboard.press("d")
        if number == 100:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    assert process.stdout is not None
    process.stdout.close()
    log = Log(log_file(run))
    kept = len(log.replay.decided())
    assert kept >= confirmed.count(200)
    log.close()
    page.wait_for_selector("#toast.bad")
    waiting = page.locator("#toast").inner_text()
    assert "not saved yet" in waiting
    # the same page goes on with a new server, once the person has opened its link
    again, link = _served(run, port)
    other = seen.context.new_page()
    other.goto(link)
    other.wait_for_url(f"{seen.base}/")
    other.wait_for_selector(READY, state="attached")
    seen.until("document.querySelectorAll('.tile[data-kind=out]').length === 200", seconds=60)
    log = Log(log_file(run))
    assert len(log.replay.decided()) == 200
    assert len(log.replay.actions) == 200  # what was sent again is no second action
    log.close()
    seen.context.close()
    again.terminate()
    again.wait()
    assert again.stdout is not None
    again.stdout.close()
