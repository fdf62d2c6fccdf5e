"""The server: who may ask, what is written, what a wrong request gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from starlette.testclient import TestClient

from capro.pipeline.run import Run
from capro.review.queue import ReviewTable
from capro.review.security import HEADERS, AccessControl
from capro.review.server import make_app
from capro.review.serving import ApplyError
from capro.review.session import ReviewSession
from capro.review.views import Views
from tests.made_up import CLASSES, HOSTILE
from tests.review.made import clean_anew, entered, make_run

HOST = "127.0.0.1:8000"
ORIGIN = {"origin": f"http://{HOST}"}


class Site:
    """A server with one browser in it."""

    def __init__(self, session: ReviewSession, work: Any = None) -> None:
        self.session, self.used = session, []
        self.access = AccessControl("127.0.0.1", 8000, self.used.append)
        self.app = make_app(session, self.access, work or (lambda path: iter(())))
        self.client = TestClient(self.app, base_url=f"http://{HOST}")
        self.key = entered(self.client, self.access.link())

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        sent = {**ORIGIN, "x-capro-key": self.key, **headers}
        body = {"version": self.session.version, **(body or {})}
        return self.client.post(path, json=body, headers={k: v for k, v in sent.items() if v})

    def picture(self, row: int, path: str = "/sample") -> str:
        """The address of a picture, as a page has it."""
        return str(re.findall(r'<img src="([^"]+)"', self.client.get(f"{path}/{row}").text)[0])

    def decide(self, rows: list[int], verb: str, **more: Any) -> Any:
        return self.post("/decide", {"rows": rows, "verb": verb, **more})


@pytest.fixture
def site(session: ReviewSession) -> Site:
    return Site(session)


@pytest.fixture
def tagged(multi_run: Run) -> Iterator[Site]:
    session = ReviewSession(multi_run)
    yield Site(session)
    session.log.close()


def test_a_link_works_once_and_the_next_is_announced(site: Site) -> None:
    other = TestClient(site.app, base_url=f"http://{HOST}")
    assert other.get("/").status_code == 401
    for token in ("wrong", "\u00e9"):
        assert other.get("/open", params={"token": token}).status_code == 401
    link = site.access.link()
    answer = other.get(link)
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert other.get("/").status_code == 200
    assert TestClient(site.app, base_url=f"http://{HOST}").get(link).status_code == 401
    third = TestClient(site.app, base_url=f"http://{HOST}")
    assert third.get(site.used[-1]).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "127.0.0.1:9", "127.0.0.1", "127.0.0.1.evil.example:8000", ""]
)
def test_another_host_is_refused(site: Site, host: str) -> None:
    assert site.client.get("/", headers={"host": host}).status_code == 421


def test_on_port_80_a_browser_names_no_port(session: ReviewSession) -> None:
    access = AccessControl("127.0.0.1", 80)
    app = make_app(session, access)
    for host, status in (("127.0.0.1", 200), ("localhost", 200), ("[::1]", 200), ("evil.example", 421)):
        client = TestClient(app, base_url=f"http://{host}")
        assert client.get(access.link().replace("127.0.0.1:80", host)).status_code == status
    assert not AccessControl("127.0.0.1", 8000).known_host("[::1]")


def test_a_write_needs_origin_key_and_cookie(site: Site) -> None:
    body = {"rows": [0], "verb": "out"}
    assert site.post("/decide", body, origin="http://evil.example").status_code == 403
    assert site.post("/decide", body, origin="null").status_code == 403
    assert site.post("/decide", body, origin="").status_code == 403
    assert site.post("/decide", body, **{"x-capro-key": ""}).status_code == 403
    assert site.post("/decide", body, **{"x-capro-key": "guess"}).status_code == 403
    foreign = {**ORIGIN, "x-capro-key": b"\xe9"}  # no ASCII: failed in the comparison
    assert site.client.post("/decide", json=body, headers=foreign).status_code == 403
    stranger = TestClient(site.app, base_url=f"http://{HOST}")
    headers = {**ORIGIN, "x-capro-key": site.key}
    assert stranger.post("/decide", json=body, headers=headers).status_code == 401
    assert site.client.get("/", headers={"origin": "http://evil.example"}).status_code == 403
    assert site.client.get("/decide").status_code == 405
    assert not site.session.decided.any()
    assert site.post("/decide", body).status_code == 200


@pytest.mark.parametrize("path", ["/", "/sample/0", "/progress", "/classes", "/class/0", "/picture/x/small/0",
                                  "/static/review.css", "/no/such/page", "/open?token=x", "/?order=x"])  # fmt: skip
def test_every_answer_forbids_foreign_content(site: Site, path: str) -> None:
    answer = site.client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "'unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd",
                                  "/picture/small/../../run.yaml", "/picture/..%2f/0", "/picture/x/0",
                                  "/picture/small/99999", "/sample/99999", "/sample/-1", "/class/99"])  # fmt: skip
def test_no_path_of_a_request_reaches_the_disk(site: Site, path: str) -> None:
    answer = site.client.get(path)
    assert answer.status_code in (400, 404)
    assert "settings:" not in answer.text
    assert "import" not in answer.text


def test_texts_are_escaped_everywhere(site: Site) -> None:
    hostile = HOSTILE[0]
    pages = [site.client.get(path).text for path in ("/", *(f"/sample/{row}" for row in range(8)))]
    assert all(hostile not in page for page in pages)
    assert any("&lt;img src=x onerror=" in page for page in pages)
    assert all("<script>" not in page and ' onerror="' not in page for page in pages)
    page = site.client.get("/", params={"text": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in page
    assert "No sample fits" in page


def test_pictures_come_as_thumbnails_and_are_kept(site: Site, run: Run) -> None:
    address = site.picture(3)
    answer = site.client.get(address)
    assert answer.headers["content-type"] == "image/webp"
    kept = [*(run.path / "review" / "pictures").rglob("*.webp")]
    assert [file.read_bytes() for file in kept] == [answer.content]
    assert site.client.get(address).content == answer.content


def test_a_picture_of_another_run_on_the_same_port_is_not_shown(site: Site, tmp_path: Path) -> None:
    """A browser keeps pictures for a day: the address must name the scan that they are of."""
    other = ReviewSession(make_run(tmp_path / "other", per_class=5))
    next_site, row = Site(other), 6
    here, there = site.picture(row), next_site.picture(row)
    assert here != there
    answer = site.client.get(here)
    assert answer.headers["cache-control"] == "private, max-age=86400"
    assert next_site.client.get(there).content != answer.content
    for old in (here, f"/picture/small/{row}"):
        gone = next_site.client.get(old)
        assert (gone.status_code, gone.headers["cache-control"]) == (404, "no-store")
    again = ReviewSession(site.session.run)  # a restart, on the other hand, keeps them
    assert Site(again).picture(row) == here
    for session in (other, again):
        session.log.close()


def test_a_picture_that_is_gone_is_said_and_the_page_stays(site: Site, run: Run) -> None:
    source = Path(str(run.settings.data.source))
    file = source / "train" / "images" / "001 x.png"
    data = file.read_bytes()
    file.unlink()
    row = next(
        r for r in range(len(site.session.table)) if site.session.table.sample_id(r).endswith("001 x.png")
    )
    assert site.client.get(site.picture(row)).status_code == 404
    file.write_bytes(data)
    assert site.client.get("/").status_code == 200


def test_decisions_by_verb(site: Site) -> None:
    table = site.session.table
    kept, dropped = (
        int(next(r for r in range(len(table)) if (table.corrected[r] >= 0) == keep)) for keep in (True, False)
    )
    site.decide([kept, dropped], "accept")
    assert site.session.decisions()[kept].yes == table.labels(kept, before=False)
    assert site.session.decisions()[dropped].answer == "out"
    answer = site.decide([kept], "label", label=CLASSES[2])
    assert answer.json()["rows"] == [{"row": kept, "kind": "labels", "word": CLASSES[2]}]
    site.decide([dropped], "anchor")
    assert site.session.decisions()[dropped].anchor
    assert site.session.decisions()[dropped].yes == table.labels(dropped, before=True)
    assert site.post("/undo").json()["text"].startswith("Undone: anchor")
    assert site.session.decisions()[dropped].answer == "out"
    assert site.post("/redo").json()["rows"][0]["word"].endswith("(anchor)")
    for _ in range(3):
        site.post("/undo")
    assert site.post("/undo").json()["text"] == "Nothing to undo."
    assert not site.session.decided.any()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"rows": [0], "verb": "out", "view": [1]}, "view: input should be an object"),
        ({"rows": [0], "verb": "out", "view": {"order": 5}}, "view.order: input should be a valid string, got 5"),
        ({"rows": [0], "verb": "out", "view": {"like": "9" * 5000}}, "like is no number"),
        ({"rows": [], "verb": "out"}, "0 rows"),
        ({"rows": [10**6], "verb": "out"}, "1 row"),
        ({"rows": ["0"], "verb": "out"}, "rows.0: input should be a valid integer, got '0'"),
        ({"rows": [True], "verb": "out"}, "rows.0: input should be a valid integer, got True"),
        ({"rows": [0], "verb": "explode"}, "no decision 'explode'"),
        ({"rows": [0], "verb": "label", "label": "cow"}, "no class 'cow'"),
        ({"rows": [0], "verb": "add", "label": "nut"}, "one label here"),
        ({"rows": [0], "verb": "out", "view": {"order": "x"}}, "order is 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_refused_with_a_sentence(site: Site, body: Any, text: str) -> None:
    answer = site.post("/decide", body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]
    assert not site.session.decided.any()


def test_a_body_that_is_no_object_is_refused(site: Site) -> None:
    headers = {**ORIGIN, "x-capro-key": site.key}
    assert site.client.post("/decide", content=b"[1", headers=headers).status_code == 400
    for wrong in (b"[" * 100_000, b'{"rows": [' + b"9" * 5000 + b"]}", b'{"verb": "\\ud800"}'):
        answer = site.client.post("/decide", content=wrong, headers=headers)
        assert answer.status_code == 400
        assert "the request is wrong: " in answer.json()["error"]
    assert site.client.post("/decide", content=b"x" * 3_000_000, headers=headers).status_code == 413


def test_a_wrong_address_says_what_is_wrong(site: Site) -> None:
    answer = site.client.get("/?order=gian")
    assert answer.status_code == 400
    assert "did you mean" in answer.text
    assert site.client.get("/?from=x").status_code == 400
    assert site.client.get("/?size=100000").status_code == 400


LONG = "9" * 5000  # more digits than Python makes a number of


@pytest.mark.parametrize("path", ["/changes?since=abc", "/changes?since=-1", f"/changes?since={LONG}", f"/?from={LONG}",
                                  f"/?like={LONG}", f"/?size={LONG}", f"/?copies={LONG}", f"/sample/{LONG}",
                                  f"/likes/{LONG}", f"/class/{LONG}", f"/copies/{LONG}", "/sample/x",
                                  "/?copies=\u0663\u00b2"])  # fmt: skip
def test_a_wrong_number_gets_one_sentence(site: Site, path: str) -> None:
    answer = site.client.get(path)
    assert answer.status_code == 400
    said = answer.json()["error"] if path.startswith(("/changes", "/copies")) else answer.text
    assert "is no number" in said or "copies is" in said
    assert len(said) < 1500


def test_a_picture_with_a_wrong_number_gets_one_sentence(site: Site) -> None:
    address = site.picture(3).removesuffix("3")
    assert site.client.get(address + LONG).status_code == 400
    assert site.client.get(address + "99999").status_code == 400


def test_others_decisions_are_seen(site: Site, run: Run) -> None:
    other = ReviewSession(run)
    site.decide([1], "out")
    found = other.changes(0)
    assert [row["row"] for row in found["rows"]] == [1]
    site.post("/undo")
    assert [row["kind"] for row in other.changes(found["last"])["rows"]] == [""]
    other.decide([2], "unsure", None, person="x", view=_plain())
    other.log.close()
    seen = site.client.get("/changes?since=0").json()
    assert {row["row"]: row["kind"] for row in seen["rows"]} == {1: "", 2: "unsure"}


def _plain() -> Any:
    from capro.review.views import View

    return View()


def test_several_labels_one_by_one(tagged: Site) -> None:
    tagged.decide([0], "add", label=CLASSES[2])
    tagged.decide([0], "remove", label=CLASSES[0])
    said = tagged.session.decisions()[0]
    assert (said.yes, said.no, said.whole) == ((CLASSES[2],), (CLASSES[0],), False)
    page = tagged.client.get("/sample/0").text
    assert "Add <kbd>" in page
    assert "history" in page
    tagged.decide([1], "accept")
    assert tagged.session.decisions()[1].whole


def test_of_near_identical_pictures_the_best_is_kept(site: Site) -> None:
    table = site.session.table
    rows = [row for row in range(len(table)) if table.duplicate_group[row] >= 0]
    assert rows == [4, 5]
    page = site.client.get("/?copies=any").text
    assert "2 near duplicates" in page
    site.decide(rows, "best")
    assert sorted(site.session.decisions()) != rows
    assert [said.answer for said in site.session.decisions().values()] == ["copy"]


def test_the_best_of_a_whole_group_is_kept_whatever_the_page_shows(site: Site) -> None:
    session = site.session
    copies = np.full(len(session.table), -1)
    copies[[2, 3, 5, 8, 13]] = 7
    copies[[4, 6]] = 9
    pixels = np.arange(len(copies))
    session.table = ReviewTable(session.run)
    vars(session.table).update(duplicate_group=copies, pixels=pixels)
    session.views = Views(session.table)
    page = site.client.get("/?copies=7&size=20").text
    assert "5 near duplicates" in page
    site.decide([13], "out")
    page = site.client.get("/?copies=7&size=20").text
    assert "4 of 5 near duplicates" in page
    assert site.client.get("/copies/2").json() == {"size": 5, "kept": 8, "dropped": [2, 3, 5], "decided": 0}
    site.decide([3], "label", label=CLASSES[0])  # what a person has labelled stays before what nobody has
    assert site.client.get("/copies/8").json() == {"size": 5, "kept": 3, "dropped": [2, 5, 8], "decided": 0}
    answer = site.decide([2], "best")
    assert sorted(state["row"] for state in answer.json()["rows"]) == [2, 5, 8]
    assert {row: said.answer for row, said in session.decisions().items()} == {
        13: "out", 3: "labels", 2: "copy", 5: "copy", 8: "copy"}  # fmt: skip
    assert site.client.get("/copies/2").json() == {"size": 5, "kept": 3, "dropped": [], "decided": 0}
    assert site.decide([2], "best").json()["rows"] == []
    site.decide([4, 2, 6, 0], "best")
    assert session.decisions()[4].answer == "copy"
    assert 6 not in session.decisions()
    assert 0 not in session.decisions()
    site.decide([6], "label", label=CLASSES[0])
    site.decide([4], "anchor", label=CLASSES[0])
    assert site.client.get("/copies/4").json() == {"size": 2, "kept": 6, "dropped": [4], "decided": 1}


def test_keys_of_help_have_a_button_on_the_page(site: Site) -> None:
    grid, sample = site.client.get("/?label=nut").text, site.client.get("/sample/0?label=nut").text
    for text in ('data-do="page"', 'data-do="like"'):
        assert text in grid
    for text in ('data-do="next"', 'data-do="back"', 'id="more-like"'):
        assert text in sample
    assert 'data-do="page"' not in sample
    names = site.session.table.names
    following = urlencode({"label": names[(names.index("nut") + 1) % len(names)]})
    for page in (grid, sample):
        assert f'id="next-class" href="/?{following}"' in page


def test_a_class_can_get_another_meaning(site: Site, run: Run) -> None:
    answer = site.post("/class/2/meaning", {"sense": "nut.n.01", "definition": "a hard fruit"})
    assert answer.status_code == 200
    again = Run.open(run.path)
    assert again.settings.data.classes == "run:review/classes.yaml"
    text = (run.path / "review" / "classes.yaml").read_text("utf-8")
    assert "a hard fruit" in text
    assert "tiger/cat" in text
    wrong = site.post("/class/2/meaning", {"sense": "n00000000", "definition": ""})
    assert wrong.status_code == 400
    assert (run.path / "review" / "classes.yaml").read_text("utf-8") == text


def test_progress_counts_the_answers(site: Site) -> None:
    site.decide([4, 5], "best")
    site.decide([1, 2], "unsure")
    page = site.client.get("/progress").text
    for figure in (
        "<b>3</b> decided",
        "<b>1</b> dropped as near duplicates",
        "<b>2</b> not sure",
        "<b>0</b> dropped",
        "<b>0</b> labelled",
    ):
        assert figure in page


def test_progress_states_the_random_part(site: Site) -> None:
    assert "Nothing yet" in site.client.get("/progress").text
    queue = site.session.table.queue
    last = queue.order[queue.random[queue.order]][3]
    for row in queue.drawn[: np.flatnonzero(queue.drawn == last)[0] + 1].tolist():
        site.decide([row], "accept")
    found = site.session.progress()["estimate"]
    assert found["judged"] + found["unsure"] == found["part"] >= 4
    page = site.client.get("/progress").text
    assert "From the random part alone" in page
    assert f"({found['before']['hits']} of {found['before']['total']};" in page
    assert "not counted yet" not in page


def test_progress_names_the_open_sample_that_random_answers_wait_for(site: Site) -> None:
    queue = site.session.table.queue
    first = int(queue.drawn[0])
    for row in queue.drawn[1:3].tolist():
        site.decide([row], "accept")
    page = site.client.get("/progress").text
    assert "Nothing yet" in page
    assert "2 more random answers not counted yet" in page
    assert f'href="/sample/{first}"' in page
    site.decide([first], "accept")
    found = site.session.progress()
    assert (found["waiting"], found["estimate"]["part"]) == (0, 3)


def test_a_random_question_counts_only_in_the_whole_queue(site: Site) -> None:
    queue, table = site.session.table.queue, site.session.table
    row, other = queue.order[queue.random[queue.order]][:2].tolist()
    name = table.names[int(table.given[row])]
    assert "random</span>" in site.client.get("/").text
    assert "random</span>" not in site.client.get("/", params={"given": name}).text
    site.decide([row], "accept", view={"given": name})
    assert not site.session.decisions()[row].random
    site.decide([other], "accept", view={"size": "100"})
    assert site.session.decisions()[other].random


def test_apply_runs_once_reports_and_renews(session: ReviewSession) -> None:
    said = []

    def work(path: Path) -> Iterator[str]:
        said.append(path)
        yield "[1/2] match"
        clean_anew(session.run)
        if len(said) > 1:
            raise ApplyError("error: no space")

    site = Site(session, work)
    before = session.version
    assert site.post("/apply").json() == {"started": True}
    _wait(site)
    assert session.version != before
    site.post("/apply")
    _wait(site)
    assert site.client.get("/changes").json()["apply"]["error"] == "error: no space"


def test_after_apply_a_page_of_before_decides_nothing(session: ReviewSession) -> None:
    """It shows the old proposals: "accept" would accept what nobody was shown."""

    def work(_path: Path) -> Iterator[str]:
        clean_anew(session.run)
        yield "[1/1] clean"

    site = Site(session, work)
    row = 7
    old, shown = session.version, session.table.labels(row, before=False)
    site.decide([1], "out", sent="answer-lost")
    site.post("/apply")
    _wait(site)
    assert session.table.labels(row, before=False) != shown
    stale = {"version": old}
    assert site.client.get("/changes").json()["version"] != old
    for path, body in (
        ("/decide", {"rows": [row], "verb": "accept"}), ("/undo", {}), ("/redo", {}),
        ("/class/2/meaning", {"sense": "nut.n.01"}),
    ):  # fmt: skip
        for seen in (stale, {"version": None}, {"version": 1}):
            answer = site.post(path, body | seen)
            assert answer.status_code == 409
            assert answer.json() == {"error": "the queue is new", "hint": "reload the page"}
    assert [*session.decisions()] == [1]
    assert not (session.run.path / "review" / "classes.yaml").exists()
    # what was saved before, its answer lost, may be sent again
    answer = site.decide([1], "out", sent="answer-lost", **stale)
    assert answer.json()["rows"] == [{"row": 1, "kind": "out", "word": "dropped"}]
    assert len(session.log.replay.actions) == 1
    page = site.client.get(f"/sample/{row}").text
    site.decide([row], "accept", version=page.split('name="capro-version" content="')[1].split('"')[0])
    assert session.decisions()[row].yes == session.table.labels(row, before=False)


def test_the_version_is_of_the_verdicts_not_of_the_process(session: ReviewSession) -> None:
    again = ReviewSession(session.run)
    assert again.version == session.version
    again.log.close()
    clean_anew(session.run)
    later = ReviewSession(session.run)
    assert later.version != session.version
    later.log.close()


def _wait(site: Site) -> None:
    import time

    for _ in range(200):
        if not site.client.get("/changes").json()["apply"]["running"]:
            return
        time.sleep(0.02)
    raise AssertionError("it does not end")


def test_a_meaning_is_not_written_while_the_run_works(site: Site, run: Run) -> None:
    """classes.yaml was written before the lock was asked for: a run at work could read either of the two."""
    before = (run.path / "run.yaml").read_bytes()
    with ThreadPoolExecutor(1) as pool, run.alone():
        answer = pool.submit(
            site.post, "/class/2/meaning", {"sense": "nut.n.01", "definition": "a hard fruit"}
        ).result()
    assert answer.status_code == 400
    assert "another capro is working in this run" in answer.json()["error"]
    assert not (run.path / "review" / "classes.yaml").exists()
    assert (run.path / "run.yaml").read_bytes() == before
