"""The server: who may ask, what is written, what a wrong request gets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from capro.review.apply import ApplyError
from capro.review.desk import Desk
from capro.review.security import HEADERS, Doors
from capro.review.server import make_app
from capro.run.directory import Run
from tests.made_up import CLASSES, HOSTILE
from tests.review.made import entered

HOST = "127.0.0.1:8000"
ORIGIN = {"origin": f"http://{HOST}"}


class Site:
    """A server with one browser in it."""

    def __init__(self, desk: Desk, work: Any = None) -> None:
        self.desk, self.used = desk, []
        self.doors = Doors("127.0.0.1", 8000, self.used.append)
        self.app = make_app(desk, self.doors, work or (lambda path: iter(())))
        self.client = TestClient(self.app, base_url=f"http://{HOST}")
        self.key = entered(self.client, self.doors.link())

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        sent = {**ORIGIN, "x-capro-key": self.key, **headers}
        return self.client.post(path, json=body or {}, headers={k: v for k, v in sent.items() if v})

    def decide(self, rows: list[int], verb: str, **more: Any) -> Any:
        return self.post("/decide", {"rows": rows, "verb": verb, **more})


@pytest.fixture
def site(desk: Desk) -> Site:
    return Site(desk)


@pytest.fixture
def tagged(several: Run) -> Iterator[Site]:
    desk = Desk(several)
    yield Site(desk)
    desk.log.close()


def test_a_link_works_once_and_the_next_is_announced(site: Site) -> None:
    other = TestClient(site.app, base_url=f"http://{HOST}")
    assert other.get("/").status_code == 401
    assert other.get("/open?token=wrong").status_code == 401
    link = site.doors.link()
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


def test_a_write_needs_origin_key_and_cookie(site: Site) -> None:
    body = {"rows": [0], "verb": "out"}
    assert site.post("/decide", body, origin="http://evil.example").status_code == 403
    assert site.post("/decide", body, origin="null").status_code == 403
    assert site.post("/decide", body, origin="").status_code == 403
    assert site.post("/decide", body, **{"x-capro-key": ""}).status_code == 403
    assert site.post("/decide", body, **{"x-capro-key": "guess"}).status_code == 403
    stranger = TestClient(site.app, base_url=f"http://{HOST}")
    headers = {**ORIGIN, "x-capro-key": site.key}
    assert stranger.post("/decide", json=body, headers=headers).status_code == 401
    assert site.client.get("/", headers={"origin": "http://evil.example"}).status_code == 403
    assert site.client.get("/decide").status_code == 405
    assert not site.desk.decided.any()
    assert site.post("/decide", body).status_code == 200


@pytest.mark.parametrize("path", ["/", "/sample/0", "/progress", "/classes", "/class/0", "/picture/small/0",
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
    answer = site.client.get("/picture/small/3")
    assert answer.headers["content-type"] == "image/webp"
    kept = [*(run.path / "review" / "pictures").rglob("*.webp")]
    assert [file.read_bytes() for file in kept] == [answer.content]
    assert site.client.get("/picture/small/3").content == answer.content


def test_a_picture_that_is_gone_is_said_and_the_page_stays(site: Site, run: Run) -> None:
    source = Path(str(run.settings.data.source))
    file = source / "train" / "images" / "001 x.png"
    data = file.read_bytes()
    file.unlink()
    row = next(r for r in range(len(site.desk.table)) if site.desk.table.sample_id(r).endswith("001 x.png"))
    assert site.client.get(f"/picture/small/{row}").status_code == 404
    file.write_bytes(data)
    assert site.client.get("/").status_code == 200


def test_decisions_by_verb(site: Site) -> None:
    table = site.desk.table
    kept, dropped = (
        int(next(r for r in range(len(table)) if (table.after[r] >= 0) == keep)) for keep in (True, False)
    )
    site.decide([kept, dropped], "accept")
    assert site.desk.said[kept].yes == table.labels(kept, before=False)
    assert site.desk.said[dropped].answer == "out"
    answer = site.decide([kept], "label", label=CLASSES[2])
    assert answer.json()["rows"] == [{"row": kept, "kind": "labels", "word": CLASSES[2]}]
    site.decide([dropped], "anchor")
    assert site.desk.said[dropped].anchor
    assert site.desk.said[dropped].yes == table.labels(dropped, before=True)
    assert site.post("/undo").json()["text"].startswith("Undone: anchor")
    assert site.desk.said[dropped].answer == "out"
    assert site.post("/redo").json()["rows"][0]["word"].endswith("(anchor)")
    for _ in range(3):
        site.post("/undo")
    assert site.post("/undo").json()["text"] == "Nothing to undo."
    assert not site.desk.decided.any()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"rows": [], "verb": "out"}, "0 rows"),
        ({"rows": [10**6], "verb": "out"}, "1 rows"),
        ({"rows": ["0"], "verb": "out"}, "no list of numbers"),
        ({"rows": [True], "verb": "out"}, "no list of numbers"),
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
    assert not site.desk.decided.any()


def test_a_body_that_is_no_object_is_refused(site: Site) -> None:
    headers = {**ORIGIN, "x-capro-key": site.key}
    assert site.client.post("/decide", content=b"[1", headers=headers).status_code == 400
    assert site.client.post("/decide", content=b"x" * 3_000_000, headers=headers).status_code == 413


def test_a_wrong_address_says_what_is_wrong(site: Site) -> None:
    answer = site.client.get("/?order=gian")
    assert answer.status_code == 400
    assert "did you mean" in answer.text
    assert site.client.get("/?from=x").status_code == 400
    assert site.client.get("/?size=100000").status_code == 400


def test_others_decisions_are_seen(site: Site, run: Run) -> None:
    other = Desk(run)
    site.decide([1], "out")
    found = other.changes(0)
    assert [row["row"] for row in found["rows"]] == [1]
    site.post("/undo")
    assert [row["kind"] for row in other.changes(found["last"])["rows"]] == [""]
    other.decide([2], "unsure", None, who="x", view=_plain())
    other.log.close()
    seen = site.client.get("/changes?since=0").json()
    assert {row["row"]: row["kind"] for row in seen["rows"]} == {1: "", 2: "unsure"}


def _plain() -> Any:
    from capro.review.views import View

    return View()


def test_several_labels_one_by_one(tagged: Site) -> None:
    tagged.decide([0], "add", label=CLASSES[2])
    tagged.decide([0], "remove", label=CLASSES[0])
    said = tagged.desk.said[0]
    assert (said.yes, said.no, said.whole) == ((CLASSES[2],), (CLASSES[0],), False)
    page = tagged.client.get("/sample/0").text
    assert "Add <kbd>" in page
    assert "history" in page
    tagged.decide([1], "accept")
    assert tagged.desk.said[1].whole


def test_of_near_identical_pictures_the_best_is_kept(site: Site) -> None:
    table = site.desk.table
    rows = [row for row in range(len(table)) if table.copies[row] >= 0]
    assert rows == [4, 5]
    page = site.client.get("/?copies=any").text
    assert "2 near duplicates" in page
    site.decide(rows, "best")
    assert sorted(site.desk.said) != rows
    assert [said.answer for said in site.desk.said.values()] == ["copy"]


def test_a_class_can_get_another_meaning(site: Site, run: Run) -> None:
    answer = site.post("/class/2/meaning", {"sense": "nut.n.01", "definition": "a hard fruit"})
    assert answer.status_code == 200
    again = Run.open(run.path)
    assert str(again.settings.data.classes).endswith("review/classes.yaml")
    text = Path(str(again.settings.data.classes)).read_text("utf-8")
    assert "a hard fruit" in text
    assert "tiger/cat" in text
    wrong = site.post("/class/2/meaning", {"sense": "n00000000", "definition": ""})
    assert wrong.status_code == 400
    assert Path(str(again.settings.data.classes)).read_text("utf-8") == text


def test_progress_counts_the_answers(site: Site) -> None:
    site.decide([4, 5], "best")
    site.decide([1, 2], "unsure")
    page = site.client.get("/progress").text
    for figure in (
        "<b>3</b> decided",
        "<b>1</b> near duplicates",
        "<b>2</b> not sure",
        "<b>0</b> out",
        "<b>0</b> labelled",
    ):
        assert figure in page


def test_progress_states_the_random_part(site: Site) -> None:
    assert "Nothing yet" in site.client.get("/progress").text
    queue = site.desk.table.queue
    for row in queue.order[queue.random][:3].tolist():
        site.decide([row], "accept")
    found = site.desk.progress()["estimate"]
    assert found["judged"] + found["unsure"] + found["skipped"] == found["part"]
    assert found["judged"] >= 3
    assert "From the random part alone" in site.client.get("/progress").text


def test_a_random_question_counts_only_in_the_whole_queue(site: Site) -> None:
    queue, table = site.desk.table.queue, site.desk.table
    row, other = queue.order[queue.random][:2].tolist()
    name = table.names[int(table.given[row])]
    assert "random</span>" in site.client.get("/").text
    assert "random</span>" not in site.client.get("/", params={"given": name}).text
    site.decide([row], "accept", view={"given": name})
    assert not site.desk.said[row].random
    site.decide([other], "accept", view={"size": "100"})
    assert site.desk.said[other].random


def test_apply_runs_once_reports_and_renews(desk: Desk) -> None:
    said = []

    def work(path: Path) -> Iterator[str]:
        said.append(path)
        yield "[1/2] match"
        if len(said) > 1:
            raise ApplyError("error: no space")

    site = Site(desk, work)
    before = desk.version
    assert site.post("/apply").json() == {"started": True}
    _wait(site)
    assert desk.version == before + 1
    site.post("/apply")
    _wait(site)
    assert site.client.get("/changes").json()["apply"]["error"] == "error: no space"


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
